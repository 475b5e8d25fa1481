//! The memory that this process may use: the machine's memory, or less if a cgroup limits it.

use std::path::{Path, PathBuf};

/// Mount points of cgroups version 2, alone or together with version 1.
const UNIFIED_MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Mount point of the memory controller of cgroups version 1.
const MEMORY_MOUNT: &str = "/sys/fs/cgroup/memory";
/// Assumed if the machine's memory is unknown, in bytes.
const DEFAULT_MEMORY: u64 = 1 << 30;

/// Returns the bytes of memory that this process may use.
pub fn available() -> u64 {
    allowed(&|path| std::fs::read_to_string(path).ok())
}

/// Returns the machine's memory, or the smallest limit of the process's cgroups if that is less.
fn allowed(read: &dyn Fn(&Path) -> Option<String>) -> u64 {
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| {
        let kib: u64 = text.lines().next()?.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib << 10)
    });
    let machine = machine.unwrap_or(DEFAULT_MEMORY);
    cgroup_limit(read).map_or(machine, |limit| limit.min(machine))
}

/// Returns the smallest limit in all hierarchies, or `None` if there is no limit.
fn cgroup_limit(read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if controllers.is_empty() {
            let in_mount = |mount: &&str| smallest_limit(read, mount, path, &["memory.max", "memory.high"]);
            UNIFIED_MOUNTS.iter().filter_map(in_mount).min()
        } else if controllers.split(',').any(|controller| controller == "memory") {
            smallest_limit(read, MEMORY_MOUNT, path, &["memory.limit_in_bytes"])
        } else {
            None
        }
    });
    limits.min()
}

/// Returns the smallest limit of a group and its ancestors. Skips groups that do not exist: in a container
/// the path may be the host's while the mount begins at the container's own group.
fn smallest_limit(
    read: &dyn Fn(&Path) -> Option<String>,
    mount: &str,
    path: &str,
    files: &[&str],
) -> Option<u64> {
    let mut directory = PathBuf::from(mount);
    let mut directories = vec![directory.clone()];
    for part in path.split('/').filter(|part| !matches!(*part, "" | "." | "..")) {
        directory.push(part);
        directories.push(directory.clone());
    }
    let paths = directories.iter().flat_map(|directory| files.iter().map(|file| directory.join(file)));
    // Version 2 writes "max" for no limit, which is not a number. Version 1 writes a number beyond any
    // machine's memory.
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
    fn smallest_limit_in_the_hierarchy_counts() {
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
            // Version 1: no limit is a large number; a container with the host's path; both versions
            // together.
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
            // A path outside of the namespace, and malformed text.
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
    fn machine_has_memory() {
        assert!(available() > 0);
    }
}
