//! Writes the manual pages and the completions of shells, from the definition of the command line.
//!
//! `cargo run -p cashew --example pages -- DIRECTORY` makes `DIRECTORY/man/cashew.1`, a page for each command
//! (`cashew-reload.1` …), and `DIRECTORY/completions` with `cashew.bash`, `_cashew` and `cashew.fish`. `packaging/build`
//! does so for the packages. As it is no command of the program, the program need not carry it.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::Path;
use std::{env, fs, io};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

#[allow(dead_code, reason = "only the definition is of interest")]
#[path = "../src/arguments.rs"]
mod arguments;

const SOURCE: &str = concat!("cashew ", env!("CARGO_PKG_VERSION"));

const FILES: &str = r".SH FILES
.TP
/etc/cashew/cashew.yml
The configuration of the packages' unit
.TP
/usr/share/doc/cashew
How to do what, every option of the configuration, operations, security
";

fn main() -> io::Result<()> {
    let directory = env::args_os().nth(1).ok_or_else(|| io::Error::other("which directory?"))?;
    let directory = Path::new(&directory);
    let mut command = visible(&arguments::Arguments::command());
    command.build();
    write_pages(&command, &directory.join("man"))?;
    write_completions(&mut command, &directory.join("completions"))
}

/// The command without what is hidden from users: clap leaves that out of pages, but not out of completions.
fn visible(whole: &Command) -> Command {
    let mut command = Command::new("cashew")
        .about(whole.get_about().cloned().unwrap_or_default())
        .long_about(whole.get_long_about().cloned().unwrap_or_default())
        .after_help(whole.get_after_help().cloned().unwrap_or_default())
        .override_usage("cashew [OPTIONS]\n       cashew <COMMAND> [OPTIONS]")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true);
    command = command.args(whole.get_arguments().filter(|it| !it.is_hide_set()));
    command.subcommands(whole.get_subcommands().filter(|it| !it.is_hide_set()))
}

/// A page for the program, and one for each command.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let names: Vec<String> = command
        .get_subcommands()
        .map(|subcommand| format!("cashew-{}", subcommand.get_name()))
        .collect();
    write_page(command, "cashew", &names, directory)?;
    for (subcommand, name) in command.get_subcommands().zip(&names) {
        write_page(subcommand, name, &["cashew".to_owned()], directory)?;
    }
    Ok(())
}

fn write_page(
    command: &Command,
    name: &str,
    related: &[String],
    directory: &Path,
) -> io::Result<()> {
    let named = command.clone().display_name(name.to_owned());
    let man = Man::new(named).source(SOURCE).manual("Cashew");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(notes) = command.get_after_help() {
        // Its lines are laid out as they stand.
        let notes = notes.to_string().replace('\\', r"\e").replace('-', r"\-");
        write!(page, ".SH NOTES\n.nf\n{notes}\n.fi\n")?;
    }
    page.extend_from_slice(FILES.as_bytes());
    let related: Vec<String> =
        related.iter().map(|name| format!("{}(1)", name.replace('-', r"\-"))).collect();
    write!(page, ".SH SEE ALSO\n{}\n", related.join(", "))?;
    fs::write(directory.join(format!("{name}.1")), page)
}

fn write_completions(command: &mut Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, command, "cashew", directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command as Program;

    use super::*;

    /// Removed in the end.
    struct Made(PathBuf);

    impl Drop for Made {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn made(name: &str) -> (Command, Made) {
        let mut command = visible(&arguments::Arguments::command());
        command.build();
        let directory = env::temp_dir().join(format!("cashew-{name}-{}", std::process::id()));
        write_pages(&command, &directory.join("man")).unwrap();
        write_completions(&mut command, &directory.join("completions")).unwrap();
        (command, Made(directory))
    }

    fn read(made: &Made, file: &str) -> String {
        fs::read_to_string(made.0.join(file)).unwrap().replace(r"\-", "-")
    }

    #[test]
    fn whatever_users_may_write_is_told_and_nothing_else() {
        let (command, made) = made("pages");
        let completions =
            ["cashew.bash", "_cashew", "cashew.fish"].map(|name| format!("completions/{name}"));
        let page = read(&made, "man/cashew.1");
        assert!(page.contains("\nSignals:\n  TERM "), "notes keep their lines");
        let mut count = 0;
        for subcommand in command.get_subcommands() {
            let name = subcommand.get_name();
            assert!(page.contains(&format!("\ncashew-{name}(1)\n")), "{name}");
            let own = read(&made, &format!("man/cashew-{name}.1"));
            assert!(own.contains(&format!("\ncashew-{name} - ")), "{own}");
            for option in subcommand.get_arguments().filter_map(|it| it.get_long()) {
                assert!(own.contains(&format!("--{option}")), "{name} --{option}");
            }
            for file in &completions {
                assert!(read(&made, file).contains(name), "{file}: {name}");
            }
            count += 1;
        }
        assert!(count > 10);
        for option in command.get_arguments().filter_map(|it| it.get_long()) {
            assert!(page.contains(&format!("--{option}")), "--{option}");
        }
        for hidden in ["rehearse", "take-over", "report-on-stdin", "discovery:"] {
            for file in completions.iter().map(String::as_str).chain(["man/cashew.1"]) {
                assert!(!read(&made, file).contains(hidden), "{file}: {hidden}");
            }
        }
    }

    #[test]
    fn bash_completes() {
        let (_, made) = made("bash");
        let script = "source \"$0\"; COMP_WORDS=(cashew $2); COMP_CWORD=${#COMP_WORDS[@]}; \
            COMP_WORDS+=(\"$1\"); _cashew cashew \"$1\" \"$2\"; echo \"${COMPREPLY[*]}\"";
        for (before, word, expected) in [("", "rel", "reload"), ("reload", "--dr", "--dry-run")] {
            let file = made.0.join("completions/cashew.bash");
            let output =
                Program::new("bash").args(["-c", script]).arg(file).args([word, before]).output();
            let output = output.unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{output:?}");
        }
    }
}
