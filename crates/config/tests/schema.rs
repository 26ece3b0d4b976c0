//! The files generated from the declarations of the options are current.
//!
//! `CASHEW_BLESS=1 cargo test -p cashew-config schema` rewrites them.

use std::path::PathBuf;

use cashew_config::schema;

fn check(path: &str, make: impl Fn(&str) -> String) {
    let full = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let written = std::fs::read_to_string(&full).unwrap_or_default();
    let made = make(&written);
    if std::env::var_os("CASHEW_BLESS").is_some() {
        std::fs::write(&full, made).unwrap();
    } else {
        assert!(
            made == written,
            "{path} is not current; run: CASHEW_BLESS=1 cargo test -p cashew-config schema"
        );
    }
}

#[test]
fn the_json_schema_is_current() {
    check("docs/schema/cashew.schema.json", |_| schema::json_schema());
}

#[test]
fn the_tables_of_the_schema_options_are_current() {
    check("docs/configuration.md", |text| {
        let text = replace_table(text, "global", &schema::global_table());
        let text = replace_table(&text, "pool", &schema::pool_table());
        let text = replace_table(&text, "route", &schema::route_table());
        let text = replace_table(&text, "cluster", &schema::cluster_table());
        let sources = schema::servers_from_tables().into_iter();
        let text = sources.fold(text, |text, (name, table)| replace_table(&text, name, &table));
        let text = replace_table(&text, "command", &schema::command_table());
        let text = replace_table(&text, "group", &schema::group_table());
        let text = replace_table(&text, "tls", &schema::tls_table());
        let text = replace_table(&text, "user", &schema::user_table());
        let text = replace_table(&text, "client user", &schema::client_user_table());
        let text = replace_table(&text, "proxy protocol", &schema::proxy_protocol_table());
        let text = replace_table(&text, "server tls", &schema::server_tls_table());
        let text = replace_table(&text, "server group", &schema::server_group_table());
        let text = replace_table(&text, "tracing", &schema::tracing_table());
        let text = replace_table(&text, "access log", &schema::access_log_table());
        let text = replace_table(&text, "audit log", &schema::audit_log_table());
        let text = replace_table(&text, "external auth", &schema::external_auth_table());
        replace_table(&text, "policy", &schema::policy_table())
    });
}

/// Puts `table` between the comments that name it.
fn replace_table(text: &str, name: &str, table: &str) -> String {
    let (begin, end) =
        (format!("<!-- {name} options -->\n"), format!("<!-- end of {name} options -->"));
    let (before, rest) = text.split_once(&begin).expect("the document has the first comment");
    let (_, after) = rest.split_once(&end).expect("the document has the last comment");
    format!("{before}{begin}\n{table}\n{end}{after}")
}
