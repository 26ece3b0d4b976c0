//! How much memory this process may use.

use std::fs;
use std::path::Path;

/// Bytes: those of the machine, or less if a control group limits them; `None` if nothing can be
/// read.
pub fn available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    machine.into_iter().chain(of_groups()).min()
}

/// MemTotal, the first line: `MemTotal:       16316412 kB`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The lowest limit of the control groups around this process (cgroups(7)), of version 2 and 1.
fn of_groups() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let files = text.lines().flat_map(limit_files);
    files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

/// The files with the limits of a line's group and of those above it: `0::/a/b` is version 2,
/// `4:memory:/a/b` version 1.
fn limit_files(line: &str) -> Vec<String> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
    else {
        return Vec::new();
    };
    let (root, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        list if list.split(',').any(|name| name == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    let groups = Path::new(path).ancestors();
    groups.map(|group| format!("{root}{}/{file}", group.display()).replace("//", "/")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_a_total() {
        let text = "MemTotal:       16316412 kB\nMemFree:          123456 kB\n";
        assert_eq!(total(text), Some(16_316_412 * 1024));
        assert_eq!(total("nothing"), None);
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn groups_above_count_too() {
        let files = limit_files("0::/a/b");
        let expected = ["/a/b/memory.max", "/a/memory.max", "/memory.max"];
        assert_eq!(files, expected.map(|file| format!("/sys/fs/cgroup{file}")));
        let files = limit_files("4:cpu,memory:/");
        assert_eq!(files, ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]);
        assert!(limit_files("3:cpuset:/a").is_empty() && limit_files("junk").is_empty());
    }
}
