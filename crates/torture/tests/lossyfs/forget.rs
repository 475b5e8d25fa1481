//! Power cuts that lose everything unsynced: a table of operations and of what survives.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use lazuli_torture::{CutMode, LossyFs, require};
use rustix::fs::{FallocateFlags, fallocate};

use crate::{cut_and_boot, durable, snapshot, sync};

/// Operations before a cut that loses everything unsynced, and everything that must exist after it.
struct Scenario {
    name: &'static str,
    act: fn(&Path) -> io::Result<()>,
    left: &'static [(&'static str, &'static str)],
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a write without a sync is lost, the file stays",
        act: |root| durable(root, "f", b"")?.write_all(b"new"),
        left: &[("f", "")],
    },
    Scenario {
        name: "fdatasync keeps data and size",
        act: |root| {
            let mut file = durable(root, "f", b"")?;
            file.write_all(b"new")?;
            file.sync_data()
        },
        left: &[("f", "new")],
    },
    Scenario {
        name: "fsync keeps what came before it and not what came after",
        act: |root| {
            let mut file = durable(root, "f", b"")?;
            file.write_all(b"one")?;
            file.sync_all()?;
            file.write_all(b"two")
        },
        left: &[("f", "one")],
    },
    Scenario {
        name: "syncing through another handle counts",
        act: |root| {
            durable(root, "f", b"")?.write_all(b"new")?;
            sync(&root.join("f"))
        },
        left: &[("f", "new")],
    },
    Scenario {
        name: "a write to a file opened with O_DSYNC needs no sync",
        act: |root| {
            durable(root, "f", b"old")?;
            let flags = rustix::fs::OFlags::DSYNC.bits() as i32;
            OpenOptions::new().write(true).custom_flags(flags).open(root.join("f"))?.write_all(b"new bytes")
        },
        left: &[("f", "new bytes")],
    },
    Scenario {
        name: "closing a file makes nothing durable",
        act: |root| {
            drop(durable(root, "f", b"")?);
            let mut file = OpenOptions::new().append(true).open(root.join("f"))?;
            file.write_all(b"new")?;
            drop(file);
            Ok(())
        },
        left: &[("f", "")],
    },
    Scenario {
        name: "an overwrite without a sync is undone",
        act: |root| durable(root, "f", b"old bytes")?.write_all_at(b"new", 0),
        left: &[("f", "old bytes")],
    },
    Scenario {
        name: "a created file is lost without a directory sync, however well it was synced itself",
        act: |root| {
            let mut file = File::create(root.join("f"))?;
            file.write_all(b"new")?;
            file.sync_all()
        },
        left: &[],
    },
    Scenario {
        name: "a directory sync keeps the name, not the content",
        act: |root| {
            File::create(root.join("f"))?.write_all(b"new")?;
            sync(root)
        },
        left: &[("f", "")],
    },
    Scenario {
        name: "an unlink without a directory sync is undone, content and all",
        act: |root| {
            durable(root, "f", b"old")?;
            fs::remove_file(root.join("f"))
        },
        left: &[("f", "old")],
    },
    Scenario {
        name: "an unlink with a directory sync is final, open or not",
        act: |root| {
            let file = durable(root, "f", b"old")?;
            fs::remove_file(root.join("f"))?;
            sync(root)?;
            let mut still = [0; 3];
            file.read_exact_at(&mut still, 0)?;
            assert_eq!(&still, b"old");
            Ok(())
        },
        left: &[],
    },
    Scenario {
        name: "a rename over a file without a directory sync leaves both as they were",
        act: |root| {
            durable(root, "f", b"old")?;
            durable(root, "tmp", b"new")?;
            fs::rename(root.join("tmp"), root.join("f"))
        },
        left: &[("f", "old"), ("tmp", "new")],
    },
    Scenario {
        name: "a rename with a directory sync replaces",
        act: |root| {
            durable(root, "f", b"old")?;
            durable(root, "tmp", b"new")?;
            fs::rename(root.join("tmp"), root.join("f"))?;
            sync(root)
        },
        left: &[("f", "new")],
    },
    Scenario {
        name: "a rename of an unsynced file with a directory sync leaves an empty file",
        act: |root| {
            durable(root, "f", b"old")?;
            fs::write(root.join("tmp"), b"new")?;
            fs::rename(root.join("tmp"), root.join("f"))?;
            sync(root)
        },
        left: &[("f", "")],
    },
    Scenario {
        name: "a rename between directories, both synced, moves",
        act: |root| {
            rename_between(root)?;
            sync(&root.join("from"))?;
            sync(&root.join("to"))
        },
        left: &[("from/", ""), ("to/", ""), ("to/f", "x")],
    },
    Scenario {
        name: "a rename between directories, only the new one synced, leaves two names",
        act: |root| {
            rename_between(root)?;
            sync(&root.join("to"))
        },
        left: &[("from/", ""), ("from/f", "x"), ("to/", ""), ("to/f", "x")],
    },
    Scenario {
        name: "a rename between directories, only the old one synced, loses the file",
        act: |root| {
            rename_between(root)?;
            sync(&root.join("from"))
        },
        left: &[("from/", ""), ("to/", "")],
    },
    Scenario {
        name: "a directory is lost with all in it if its parent was not synced",
        act: |root| {
            fs::create_dir(root.join("d"))?;
            durable(root, "d/f", b"x")?;
            Ok(())
        },
        left: &[],
    },
    Scenario {
        name: "a removed directory comes back with what was in it",
        act: |root| {
            fs::create_dir(root.join("d"))?;
            sync(root)?;
            durable(root, "d/f", b"x")?;
            fs::remove_dir_all(root.join("d"))
        },
        left: &[("d/", ""), ("d/f", "x")],
    },
    Scenario {
        name: "a truncate without a sync is undone",
        act: |root| durable(root, "f", b"old bytes")?.set_len(3),
        left: &[("f", "old bytes")],
    },
    Scenario {
        name: "a truncate with a sync is kept, and what was behind it does not come back when the file grows",
        act: |root| {
            let file = durable(root, "f", b"old bytes")?;
            file.set_len(3)?;
            file.set_len(5)?;
            file.sync_data()
        },
        left: &[("f", "old\0\0")],
    },
    Scenario {
        name: "truncate and rewrite without a sync is undone",
        act: |root| {
            durable(root, "f", b"old bytes")?;
            fs::write(root.join("f"), b"new")
        },
        left: &[("f", "old bytes")],
    },
    Scenario {
        name: "appends are kept up to the last sync",
        act: |root| {
            durable(root, "f", b"one ")?;
            let mut file = OpenOptions::new().append(true).open(root.join("f"))?;
            file.write_all(b"two ")?;
            file.sync_data()?;
            file.write_all(b"three")
        },
        left: &[("f", "one two ")],
    },
    Scenario {
        name: "a punched hole without a sync is undone",
        act: |root| {
            let file = durable(root, "f", b"old bytes")?;
            fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 2, 5)?;
            assert_eq!(fs::read(root.join("f"))?, b"ol\0\0\0\0\0es");
            Ok(())
        },
        left: &[("f", "old bytes")],
    },
    Scenario {
        name: "a punched hole with a sync is kept",
        act: |root| {
            let file = durable(root, "f", b"old bytes")?;
            fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 2, 5)?;
            file.sync_data()
        },
        left: &[("f", "ol\0\0\0\0\0es")],
    },
    Scenario {
        name: "fallocate grows the file, durably after a sync; with KEEP_SIZE it does not",
        act: |root| {
            for (name, flags) in [("grown", FallocateFlags::empty()), ("kept", FallocateFlags::KEEP_SIZE)] {
                let file = durable(root, name, b"x")?;
                fallocate(&file, flags, 0, 4)?;
                file.sync_data()?;
            }
            Ok(())
        },
        left: &[("grown", "x\0\0\0"), ("kept", "x")],
    },
];

fn rename_between(root: &Path) -> io::Result<()> {
    fs::create_dir(root.join("from"))?;
    fs::create_dir(root.join("to"))?;
    sync(root)?;
    durable(root, "from/f", b"x")?;
    fs::rename(root.join("from/f"), root.join("to/f"))
}

#[test]
fn a_forgetting_cut_keeps_exactly_what_was_synced() {
    if !require() {
        return;
    }
    for Scenario { name, act, left } in SCENARIOS {
        let fs = LossyFs::mount_temporary().unwrap();
        act(fs.path()).unwrap_or_else(|error| panic!("{name}: {error}\n{}", fs.report()));
        cut_and_boot(&fs, CutMode::Forget, 0);
        let left: BTreeMap<String, Vec<u8>> =
            left.iter().map(|(path, content)| ((*path).to_owned(), content.as_bytes().to_vec())).collect();
        assert_eq!(snapshot(fs.path()), left, "{name}\n{}", fs.report());
        // Another boot changes nothing: what survived once is durable.
        cut_and_boot(&fs, CutMode::Tear, 1);
        assert_eq!(snapshot(fs.path()), left, "{name}, second cut");
    }
}
