//! Bytes passed to another process as a sealed memfd: holders of the descriptor can read them,
//! nobody can change them.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags};

/// Largest content that [`unseal`] reads.
pub const SEALED_BYTES_MAX: u64 = 256 << 20;

const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

pub fn seal(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("cashew-snapshot", flags)?);
    file.write_all(bytes)?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// The content of a memfd made by [`seal`].
pub fn unseal(memfd: impl AsFd) -> io::Result<Vec<u8>> {
    let file = File::from(memfd.as_fd().try_clone_to_owned()?);
    if !rustix::fs::fcntl_get_seals(&file)?.contains(SEALS) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the memfd is not sealed"));
    }
    let len = file.metadata()?.len();
    if len > SEALED_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; usize::try_from(len).expect("checked against SEALED_BYTES_MAX")];
    // All processes that hold the memfd share one file offset, so it is not used.
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_readers_read_the_same() {
        let memfd = seal(b"snapshot").unwrap();
        let other = memfd.try_clone().unwrap();
        assert_eq!(unseal(&memfd).unwrap(), b"snapshot");
        assert_eq!(unseal(&other).unwrap(), b"snapshot");
        assert_eq!(unseal(seal(b"").unwrap()).unwrap(), b"");
    }

    #[test]
    fn nobody_can_write() {
        let file = File::from(seal(b"snapshot").unwrap());
        assert!(file.write_at(b"x", 0).is_err());
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(100).is_err());
    }

    #[test]
    fn an_unsealed_file_is_refused() {
        let memfd = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(unseal(memfd).is_err());
        assert!(unseal(File::open("/dev/null").unwrap()).is_err());
    }
}
