//! Giving up root.

use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use crate::hardening;
use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, geteuid, initgroups, setgid, setgroups, setuid};

#[derive(Debug, thiserror::Error)]
pub enum PrivilegesError {
    #[error("user '{0}' does not exist")]
    NoUser(String),
    #[error("group '{0}' does not exist")]
    NoGroup(String),
    #[error("cannot look up {what} '{name}': {errno}")]
    LookUp { what: &'static str, name: String, errno: Errno },
    #[error("cannot {step}: {errno}")]
    Step { step: &'static str, errno: Errno },
    #[error("privileges are not dropped for good: the process keeps CAP_SETUID under any user")]
    Kept,
}

/// Makes the whole process, all its threads, run as `user` and `group`, for good. Without a group
/// it is the user's own. Does nothing when the process is not root's or when neither is wanted.
pub fn drop_privileges(user: Option<&str>, group: Option<&str>) -> Result<(), PrivilegesError> {
    // Threads of one process may be here at once: the second one finds that it is done.
    static CHANGING: Mutex<()> = Mutex::new(());
    let changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    if geteuid().is_root() {
        change_identity(user, group)?;
    }
    drop(changing);
    hardening::settle();
    Ok(())
}

fn change_identity(user: Option<&str>, group: Option<&str>) -> Result<(), PrivilegesError> {
    let identity = Identity::look_up(user, group)?;
    // The user goes last: without root's rights the groups could not be changed any more.
    if let Some(gid) = identity.gid {
        match &identity.user {
            Some((name, _)) => step("set the groups of the user", initgroups(name, gid))?,
            None => step("set the groups", setgroups(&[gid]))?,
        }
        step("set the group", setgid(gid))?;
    }
    if let Some((_, uid)) = identity.user {
        step("set the user", setuid(uid))?;
        if !uid.is_root() && setuid(Uid::from_raw(0)).is_ok() {
            return Err(PrivilegesError::Kept);
        }
    }
    Ok(())
}

struct Identity {
    user: Option<(CString, Uid)>,
    gid: Option<Gid>,
}

impl Identity {
    fn look_up(user: Option<&str>, group: Option<&str>) -> Result<Self, PrivilegesError> {
        let user = user.map(look_up_user).transpose()?;
        let group = group.map(look_up_group).transpose()?;
        Ok(Self {
            gid: group.map(|group| group.gid).or(user.as_ref().map(|user| user.gid)),
            user: user.map(|user| {
                let name = CString::new(user.name).expect("it came from a C string");
                (name, user.uid)
            }),
        })
    }
}

fn look_up_user(name: &str) -> Result<User, PrivilegesError> {
    User::from_name(name)
        .map_err(|errno| PrivilegesError::LookUp { what: "user", name: name.into(), errno })?
        .ok_or_else(|| PrivilegesError::NoUser(name.into()))
}

fn look_up_group(name: &str) -> Result<Group, PrivilegesError> {
    Group::from_name(name)
        .map_err(|errno| PrivilegesError::LookUp { what: "group", name: name.into(), errno })?
        .ok_or_else(|| PrivilegesError::NoGroup(name.into()))
}

fn step(step: &'static str, result: nix::Result<()>) -> Result<(), PrivilegesError> {
    result.map_err(|errno| PrivilegesError::Step { step, errno })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_wanted_is_nothing_done() {
        drop_privileges(None, None).unwrap();
    }

    #[test]
    fn the_group_of_the_user_is_the_default() {
        let identity = Identity::look_up(Some("root"), None).unwrap();
        assert_eq!(identity.gid, Some(Gid::from_raw(0)));
        let (name, uid) = identity.user.unwrap();
        assert_eq!((name.to_str().unwrap(), uid.as_raw()), ("root", 0));
    }

    #[test]
    fn who_does_not_exist_is_named() {
        let error = Identity::look_up(Some("no-such-user"), None).err().unwrap();
        assert_eq!(error.to_string(), "user 'no-such-user' does not exist");
        let error = Identity::look_up(None, Some("no-such-group")).err().unwrap();
        assert_eq!(error.to_string(), "group 'no-such-group' does not exist");
    }
}
