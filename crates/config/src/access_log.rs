//! The file with a line for each request that was looked at: `access_log`.

use schemars::{Schema, SchemaGenerator};

use crate::diagnostic::{At, Complaint, Report};
use crate::file::AccessLogSection;
use crate::section;
use crate::snapshot::AccessLog;
use crate::tree::{Kind, Node};
use crate::value::{FilePath, Value};

#[derive(Debug)]
pub(crate) struct AccessLogText {
    pub(crate) log: AccessLog,
    pub(crate) file: At<FilePath>,
}

impl Value for AccessLogText {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"access_log\" takes a section").hint(Self::expected()))
    }

    fn schema() -> Schema {
        section::schema::<AccessLogSection>(&mut SchemaGenerator::default())
    }

    fn describe() -> String {
        "a section like `{file: /var/log/cashew/access.log, share: 1%}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        let what = format!("option \"{key}\"");
        let section: AccessLogSection = section::read(&what, node.pos, node, report);
        let (share_percent, slow) = (section.share.value.0, section.slow.value.0);
        if share_percent == 0 && !slow {
            let complaint =
                Complaint::new("with a \"share\" of 0% and without slow ones no request is logged");
            report.error(section.slow.pos, complaint.hint("leave \"access_log\" away instead"));
        }
        let file = section.file?;
        let log = AccessLog {
            file: file.value.0.clone(),
            format: section.format.value,
            share_percent,
            slow,
            arguments: section.arguments.value.0,
        };
        Some(Self { log, file })
    }
}

/// In words for an operator.
pub(crate) fn shown(log: &Option<AccessLog>) -> String {
    let Some(log) = log else { return "none".to_owned() };
    let AccessLog { file, format, share_percent, slow, arguments } = log;
    format!(
        "{}, {}, share {share_percent}%, slow {slow}, arguments {arguments}",
        file.display(),
        format.name()
    )
}
