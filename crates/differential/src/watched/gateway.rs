//! The gateway as a process.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::port::{self, Port};
use crate::random::Random;
use crate::servers::{Directory, Server};

use super::Scenario;

/// The most lines of the gateway's log in a finding.
const WARNINGS_MAX: usize = 40;

const START_MAX: Duration = Duration::from_secs(30);

pub(super) struct Gateway {
    child: Child,
    directory: Directory,
}

/// A free port below those that the system gives to clients.
fn free_port(random: &mut Random) -> u16 {
    loop {
        let port = 10_000 + random.below(22_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Gateway {
    /// A gateway with these pools, each with its servers.
    pub(super) fn start(
        program: &Path,
        workers: u32,
        pools: &[(String, Scenario, &[Server])],
        random: &mut Random,
    ) -> io::Result<Self> {
        let directory = Directory::new()?;
        let mut yaml = format!(
            "global:\n  worker_processes: {workers}\n  stats_listen: 127.0.0.1:{}\n  log_file: {}\n",
            free_port(random),
            directory.0.join("log").display(),
        );
        let of_pool = |servers: &[Server]| -> Vec<String> {
            servers.iter().map(|server| server.socket.display().to_string()).collect()
        };
        let owned: Vec<(String, Vec<Vec<String>>)> = pools
            .iter()
            .map(|(name, scenario, servers)| {
                let listen = directory.0.join(name).display().to_string();
                (listen, servers.chunks(scenario.servers).map(of_pool).collect())
            })
            .collect();
        let ports: Vec<Port<'_>> = pools
            .iter()
            .zip(&owned)
            .map(|((name, scenario, _), (listen, servers))| {
                let Scenario { options, tree, .. } = *scenario;
                Port { name, listen, options, tree, servers }
            })
            .collect();
        yaml.push_str(&port::yaml(&ports));
        let config = directory.0.join("cashew.yml");
        std::fs::write(&config, yaml)?;
        let output = std::fs::File::create(directory.0.join("output"))?;
        let child = Command::new(program)
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let mut gateway = Self { child, directory };
        let started = Instant::now();
        for (name, ..) in pools {
            while UnixStream::connect(gateway.address(name)).is_err() {
                if started.elapsed() > START_MAX || !gateway.is_running() {
                    return Err(io::Error::other(format!(
                        "the gateway does not start: {}",
                        gateway.log()
                    )));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(gateway)
    }

    pub(super) fn address(&self, pool: &str) -> PathBuf {
        self.directory.0.join(pool)
    }

    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its log and its other output.
    pub(super) fn log(&self) -> String {
        let read = |name| std::fs::read(self.directory.0.join(name)).unwrap_or_default();
        let bytes = [read("log"), read("output")].concat();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last warnings in its log.
    pub(super) fn warnings(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log
            .lines()
            .filter(|line| line.contains(" WARN ") || line.contains(" ERROR "))
            .collect();
        lines[lines.len().saturating_sub(WARNINGS_MAX)..].join("\n")
    }

    /// Lines about a crash.
    pub(super) fn crashes(&self) -> Vec<String> {
        let tells = |line: &&str| {
            ["panicked", "killed by signal", "is respawned", "does not answer", "hangs"]
                .iter()
                .any(|sign| line.contains(sign))
        };
        self.log().lines().filter(tells).map(str::to_owned).collect()
    }

    /// Private memory of it and its children, in bytes.
    pub(super) fn memory(&self) -> u64 {
        let mut total = 0;
        let mut processes = vec![self.child.id()];
        while let Some(process) = processes.pop() {
            let of = |name: &str| {
                std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default()
            };
            let status = of("status");
            let resident = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
            let kilobytes =
                resident.and_then(|text| text.trim().split(' ').next()?.parse::<u64>().ok());
            total += kilobytes.unwrap_or(0) * 1024;
            let children = of(&format!("task/{process}/children"));
            processes.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
        total
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The master ends its children when it is told to stop.
        let id = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        let started = Instant::now();
        while self.is_running() && started.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
