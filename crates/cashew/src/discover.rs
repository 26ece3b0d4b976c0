//! `cashew discover`: which servers the source of a pool names now.

use std::process::ExitCode;

use cashew_config::snapshot::{Pool, Server};
use serde::Serialize;

use crate::arguments::DiscoverArguments;
use crate::operate::table;
use crate::output::print_line;

#[derive(Serialize)]
struct Named<'a> {
    pool: &'a str,
    name: &'a str,
    address: String,
    weight: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<&'a str>,
}

pub(crate) fn discover(arguments: &DiscoverArguments) -> ExitCode {
    match ask(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            print_line(format_args!("cashew: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn ask(arguments: &DiscoverArguments) -> Result<(), String> {
    let loaded = cashew_config::load(&arguments.instance.conf_file).map_err(|it| it.to_string())?;
    let name = &arguments.pool;
    let pool = loaded.snapshot.pools.iter().find(|pool| pool.name == *name);
    let pool = pool.ok_or_else(|| format!("there is no pool '{name}'"))?;
    let source = pool.source().ok_or_else(|| {
        format!("pool '{name}' has no source: the file names its servers, or its cluster does")
    })?;
    let found = cashew_discovery::list_once(source)
        .and_then(|found| pool.check_found(&found).map(|()| found))
        .map_err(|why| format!("pool '{name}': {source}: {why}"))?;
    let text = match arguments.json {
        true => json(pool, &found)?,
        false => format!("{source} names {} servers\n{}", found.len(), rows(&found)),
    };
    print(&text);
    Ok(())
}

fn json(pool: &Pool, found: &[Server]) -> Result<String, String> {
    let named = |server: &Server| {
        let named = Named {
            pool: &pool.name,
            name: &server.name,
            address: server.endpoint.to_string(),
            weight: server.weight,
            zone: server.zone.as_deref(),
        };
        serde_json::to_string(&named).map(|line| line + "\n").map_err(|error| error.to_string())
    };
    found.iter().map(named).collect()
}

fn rows(found: &[Server]) -> String {
    if found.is_empty() {
        return String::new();
    }
    let mut rows = vec![["SERVER", "ADDRESS", "WEIGHT", "ZONE"].map(str::to_owned).to_vec()];
    rows.extend(found.iter().map(|server| {
        let zone = server.zone.clone().unwrap_or_else(|| "-".to_owned());
        vec![server.name.clone(), server.endpoint.to_string(), server.weight.to_string(), zone]
    }));
    table(&rows)
}

/// Who reads it may have gone.
fn print(text: &str) {
    use std::io::Write;
    _ = std::io::stdout().write_all(text.as_bytes());
}
