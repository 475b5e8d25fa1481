//! How much memory this process may have: the machine's, or less where a cgroup limits it.

use std::path::{Path, PathBuf};

/// Where cgroups are mounted: the hierarchy of version 2, alone or beside version 1, and that of memory in version 1.
const UNIFIED: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
const MEMORY: &str = "/sys/fs/cgroup/memory";
/// Assumed where the machine does not tell.
const UNKNOWN: u64 = 1 << 30;

/// Bytes of memory that this process may have.
pub(crate) fn available() -> u64 {
    allowed(&|path| std::fs::read_to_string(path).ok())
}

/// The machine's memory, or the smallest limit of any cgroup that the process is in.
fn allowed(read: &dyn Fn(&Path) -> Option<String>) -> u64 {
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| {
        let kib: u64 = text.lines().next()?.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib << 10)
    });
    let machine = machine.unwrap_or(UNKNOWN);
    cgroup_limit(read).map_or(machine, |limit| limit.min(machine))
}

/// The smallest limit in all hierarchies; `None` if nothing is limited.
fn cgroup_limit(read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if controllers.is_empty() {
            let in_mount = |mount: &&str| smallest(read, mount, path, &["memory.max", "memory.high"]);
            UNIFIED.iter().filter_map(in_mount).min()
        } else if controllers.split(',').any(|controller| controller == "memory") {
            smallest(read, MEMORY, path, &["memory.limit_in_bytes"])
        } else {
            None
        }
    });
    limits.min()
}

/// The smallest limit of a group and of all above it. A group that is not there is passed over: in a container the path may
/// be the host's while the mount begins at the container's own group.
fn smallest(read: &dyn Fn(&Path) -> Option<String>, mount: &str, path: &str, files: &[&str]) -> Option<u64> {
    let mut directory = PathBuf::from(mount);
    let mut directories = vec![directory.clone()];
    for part in path.split('/').filter(|part| !matches!(*part, "" | "." | "..")) {
        directory.push(part);
        directories.push(directory.clone());
    }
    let paths = directories.iter().flat_map(|directory| files.iter().map(|file| directory.join(file)));
    // "max" is no number. Version 1 says that there is no limit by one that no machine has.
    paths.filter_map(|path| read(&path)?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn allowed_by(files: &[(&str, &str)]) -> u64 {
        let mut all: HashMap<&str, &str> =
            HashMap::from([("/proc/meminfo", "MemTotal:  16777216 kB\nMemFree: 1 kB\n")]);
        all.extend(files.iter().copied());
        allowed(&|path| all.get(path.to_str()?).map(|text| (*text).to_owned()))
    }

    #[test]
    fn the_smallest_limit_up_the_hierarchy_counts() {
        let nested = ("/proc/self/cgroup", "0::/kube/pod/app\n");
        for (files, expected) in [
            (vec![], 16 * GIB),
            (vec![("/proc/self/cgroup", "0::/\n")], 16 * GIB),
            // Version 2: in a container's own namespace, nested, without a limit, above the machine's memory.
            (vec![("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/memory.max", "1073741824\n")], GIB),
            (vec![nested, ("/sys/fs/cgroup/kube/pod/app/memory.max", "max\n")], 16 * GIB),
            (vec![nested, ("/sys/fs/cgroup/kube/pod/memory.max", "2147483648\n")], 2 * GIB),
            (
                vec![
                    nested,
                    ("/sys/fs/cgroup/kube/memory.max", "4294967296\n"),
                    ("/sys/fs/cgroup/kube/pod/memory.max", "2147483648\n"),
                    ("/sys/fs/cgroup/kube/pod/app/memory.max", "3221225472\n"),
                ],
                2 * GIB,
            ),
            (vec![nested, ("/sys/fs/cgroup/kube/pod/app/memory.max", "99999999999999\n")], 16 * GIB),
            (
                vec![
                    nested,
                    ("/sys/fs/cgroup/kube/pod/app/memory.max", "2147483648\n"),
                    ("/sys/fs/cgroup/kube/pod/app/memory.high", "1073741824\n"),
                ],
                GIB,
            ),
            // Version 1: no limit is a large number; a container's path that is the host's; both versions at once.
            (
                vec![
                    ("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n"),
                    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                    ("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "536870912\n"),
                ],
                GIB / 2,
            ),
            (
                vec![
                    ("/proc/self/cgroup", "4:hugetlb,memory:/docker/abc\n"),
                    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
                ],
                GIB / 2,
            ),
            (
                vec![
                    ("/proc/self/cgroup", "4:memory:/a\n0::/b\n"),
                    ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2147483648\n"),
                    ("/sys/fs/cgroup/unified/b/memory.max", "1073741824\n"),
                ],
                GIB,
            ),
            // Outside of the namespace, and nonsense.
            (
                vec![("/proc/self/cgroup", "0::/../../x\n"), ("/sys/fs/cgroup/x/memory.max", "1073741824")],
                GIB,
            ),
            (vec![("/proc/self/cgroup", "nonsense\n::\n"), ("/sys/fs/cgroup/memory.max", "?")], 16 * GIB),
        ] {
            assert_eq!(allowed_by(&files), expected, "{files:?}");
        }
    }

    #[test]
    fn this_machine_has_some() {
        assert!(available() > 0);
    }
}
