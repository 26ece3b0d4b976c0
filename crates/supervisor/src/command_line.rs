//! Command-line flags for log and statistics. They hold for the life of the instance and override
//! the configuration: a file must not move the log away from where a service manager looks for it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use cashew_config::snapshot::Global;

/// The given flags, without defaults.
#[derive(Clone, Debug, Default)]
pub struct CommandLine {
    /// The host of the statistics; its port means nothing.
    pub stats_host: Option<SocketAddr>,
    pub stats_port: Option<u16>,
    pub log_file: Option<PathBuf>,
    /// 0..=11, as nutcracker's `-v`.
    pub log_level: Option<u8>,
}

impl CommandLine {
    /// Address of the statistics by flags and configuration.
    pub fn stats_listen(&self, global: &Global) -> SocketAddr {
        let said = global.stats_listen();
        let mut address = self.stats_host.unwrap_or(said);
        address.set_port(self.stats_port.unwrap_or(said.port()));
        address
    }

    /// `None` is standard error.
    pub fn log_file<'a>(&'a self, global: &'a Global) -> Option<&'a Path> {
        self.log_file.as_deref().or(global.log_file.as_deref())
    }

    pub fn log_level(&self, global: &Global) -> u8 {
        self.log_level.unwrap_or(global.log_level())
    }

    /// Overrides the configuration. Returns a line for each value that differs.
    pub(crate) fn overrule(&self, global: &mut Global) -> Vec<String> {
        let mut overruled = Vec::new();
        let mut tell = |key, said: String, flags: String| {
            overruled.push(format!("{key} {said} is overridden by {flags} on the command line"));
        };
        if let Some(said) = global.stats_listen
            && said != self.stats_listen(global)
        {
            let stats = self.stats_listen(global);
            let host = self.stats_host.map(|_| format!("-a {}", stats.ip()));
            let port = self.stats_port.map(|port| format!("-s {port}"));
            let flags: Vec<String> = host.into_iter().chain(port).collect();
            tell("stats_listen", said.to_string(), flags.join(" "));
        }
        if let (Some(said), Some(file)) = (&global.log_file, &self.log_file)
            && said != file
        {
            tell("log_file", said.display().to_string(), format!("-o {}", file.display()));
        }
        if let (Some(said), Some(level)) = (global.log_level, self.log_level)
            && said != level
        {
            tell("log_level", said.to_string(), format!("-v {level}"));
        }
        if self.stats_host.is_some() || self.stats_port.is_some() {
            global.stats_listen = Some(self.stats_listen(global));
        }
        global.log_file = self.log_file(global).map(Path::to_path_buf);
        global.log_level = self.log_level.or(global.log_level);
        overruled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn global(options: &str) -> Global {
        let text = format!(
            "global: {{{options}}}\npools: {{p: {{listen: /p, servers: [\"127.0.0.1:1:1\"]}}}}\n"
        );
        let loaded = cashew_config::parse("test.yml", &text, &cashew_config::Context::of_system());
        loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot.global
    }

    #[test]
    fn without_flags_the_configuration_holds() {
        let mut said = global("stats_listen: \"[::1]:9\", log_file: /log, log_level: 7");
        let before = said.clone();
        assert!(CommandLine::default().overrule(&mut said).is_empty());
        assert_eq!(said, before);
        let mut defaults = global("");
        assert!(CommandLine::default().overrule(&mut defaults).is_empty());
        assert_eq!(defaults, global(""));
    }

    #[test]
    fn flags_override_and_report_it() {
        let given = CommandLine {
            stats_host: Some("127.0.0.1:0".parse().unwrap()),
            stats_port: Some(1),
            log_file: Some("cashew.log".into()),
            log_level: Some(5),
        };
        let mut said = global("stats_listen: \"[::1]:9\", log_file: /log, log_level: 7");
        let overruled = given.overrule(&mut said);
        assert_eq!(
            overruled,
            [
                "stats_listen [::1]:9 is overridden by -a 127.0.0.1 -s 1 on the command line",
                "log_file /log is overridden by -o cashew.log on the command line",
                "log_level 7 is overridden by -v 5 on the command line",
            ]
        );
        let holds = |global: &Global| {
            assert_eq!(global.stats_listen(), "127.0.0.1:1".parse().unwrap());
            assert_eq!(global.log_file.as_deref(), Some(Path::new("cashew.log")));
            assert_eq!(global.log_level(), 5);
        };
        holds(&said);
        assert!(given.overrule(&mut said).is_empty(), "it says so now");
        // Values that the file does not set are not overridden.
        let mut silent = global("");
        assert!(given.overrule(&mut silent).is_empty());
        holds(&silent);
    }

    #[test]
    fn host_and_port_are_independent() {
        let mut said = global("stats_listen: 127.0.0.1:9");
        let port = CommandLine { stats_port: Some(1), ..CommandLine::default() };
        assert_eq!(
            port.overrule(&mut said),
            ["stats_listen 127.0.0.1:9 is overridden by -s 1 on the command line"]
        );
        assert_eq!(said.stats_listen(), "127.0.0.1:1".parse().unwrap());
        let mut said = global("stats_listen: 127.0.0.1:9");
        let host = Some("[::1]:0".parse().unwrap());
        let host = CommandLine { stats_host: host, ..CommandLine::default() };
        assert_eq!(host.overrule(&mut said).len(), 1);
        assert_eq!(said.stats_listen(), "[::1]:9".parse().unwrap());
    }
}
