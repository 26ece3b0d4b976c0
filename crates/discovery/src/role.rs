//! What one server says that it is, asked once by who may wait for the answer.

use std::time::Duration;

use cashew_config::snapshot::{Credentials, Endpoint};
use cashew_tls::Security;

use crate::direct::{Direct, line};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Primary,
    Replica,
}

/// Asks a server of Redis for its role. Waits no longer than `timeout` for each address of the server, but
/// for the look-up of its name.
pub fn role_of(
    endpoint: &Endpoint,
    security: Option<&Security>,
    credentials: &[Credentials],
    timeout: Duration,
) -> Result<Role, String> {
    let mut server = Direct::open(endpoint, security, timeout)?;
    if let Some(answer) = server.log_in(credentials)? {
        return Err(format!("it answers AUTH with {answer}"));
    }
    let answer = server.ask(&[b"ROLE"])?;
    let is_said = |role: &[u8]| {
        let start = [b"$", role.len().to_string().as_bytes(), b"\r\n", role, b"\r\n"].concat();
        let behind_header = answer.iter().position(|&byte| byte == b'\n').unwrap_or(0) + 1;
        answer.first() == Some(&b'*') && answer[behind_header..].starts_with(&start)
    };
    match () {
        () if is_said(b"master") => Ok(Role::Primary),
        () if is_said(b"slave") => Ok(Role::Replica),
        () => Err(format!("it answers ROLE with {}", line(&answer))),
    }
}
