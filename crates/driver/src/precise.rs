//! Waits for epoll events with a timeout finer than a millisecond. rustix's `epoll::wait` rounds up
//! to the next millisecond on kernels without epoll_pwait2.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};
use rustix::io::Errno;

/// epoll_pwait2 (Linux 5.11), if the kernel has it.
#[derive(Debug)]
pub(crate) struct PreciseWait {
    is_known: bool,
}

impl PreciseWait {
    pub(crate) fn new() -> Self {
        Self { is_known: true }
    }

    /// Appends the events to `events`, as far as there is room, and waits for some for at most
    /// `timeout` (`None`: without limit). If the kernel does not have the call, or a filter refuses
    /// it, the timeout is rounded up to milliseconds.
    pub(crate) fn wait(
        &mut self,
        epoll: impl AsFd,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        // Polling costs the same with either.
        let is_look = timeout == Some(Timespec::default());
        if self.is_known && !is_look {
            match epoll_pwait2(&epoll, events, timeout.as_ref()) {
                Err(Errno::NOSYS | Errno::PERM) => self.is_known = false,
                result => return result,
            }
        }
        epoll::wait(&epoll, spare_capacity(events), timeout.as_ref()).map(drop)
    }
}

/// epoll_pwait2(2) without a signal mask.
fn epoll_pwait2(
    epoll: &impl AsFd,
    events: &mut Vec<Event>,
    timeout: Option<&Timespec>,
) -> Result<(), Errno> {
    const { assert!(size_of::<Event>() == size_of::<libc::epoll_event>()) };
    let spare = events.spare_capacity_mut();
    let room = libc::c_int::try_from(spare.len()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the kernel writes at most `room` events to memory that has room for them; rustix's
    // event is the kernel's. It reads the time, whose fields both have 64 bits, during the call,
    // and no mask. Each argument has the size of a register.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            libc::c_long::from(epoll.as_fd().as_raw_fd()),
            spare.as_mut_ptr(),
            libc::c_long::from(room),
            timeout.map_or(ptr::null(), ptr::from_ref),
            ptr::null::<libc::sigset_t>(),
            0_usize,
        )
    };
    let Ok(count) = usize::try_from(count) else {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    };
    // SAFETY: the kernel has written so many.
    unsafe { events.set_len(events.len() + count) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// The shortest of several waits of so many microseconds.
    fn shortest(wait: &mut PreciseWait, timeout_us: u64) -> Duration {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let mut events = Vec::with_capacity(4);
        let trial = || {
            let start = Instant::now();
            let timeout = Some(Duration::from_micros(timeout_us));
            wait.wait(&epoll, &mut events, timeout).unwrap();
            assert!(events.is_empty());
            start.elapsed()
        };
        std::iter::repeat_with(trial).take(100).min().unwrap()
    }

    #[test]
    fn a_wait_of_less_than_a_millisecond_takes_less() {
        let took = shortest(&mut PreciseWait::new(), 100);
        assert!((100..1000).contains(&took.as_micros()), "{took:?}");
    }

    #[test]
    fn a_kernel_without_the_call_waits_for_whole_milliseconds() {
        let took = shortest(&mut PreciseWait { is_known: false }, 100);
        assert!(took >= Duration::from_millis(1), "{took:?}");
    }

    #[test]
    fn it_tells_what_there_is_as_far_as_there_is_room() {
        for is_known in [true, false] {
            let mut wait = PreciseWait { is_known };
            let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
            let sources: Vec<_> =
                (0..3).map(|_| eventfd(1, EventfdFlags::CLOEXEC).unwrap()).collect();
            for (number, source) in sources.iter().enumerate() {
                let data = EventData::new_u64(7 + number as u64);
                epoll::add(&epoll, source, data, EventFlags::IN).unwrap();
            }
            let mut events: Vec<Event> = Vec::with_capacity(3);
            for timeout in [None, Some(Duration::ZERO), Some(Duration::from_secs(5))] {
                events.clear();
                wait.wait(&epoll, &mut events, timeout).unwrap();
                let mut told: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
                told.sort_unstable();
                assert_eq!(told, [7, 8, 9]);
            }
            let mut few: Vec<Event> = Vec::with_capacity(1);
            wait.wait(&epoll, &mut few, None).unwrap();
            assert_eq!(few.len(), 1);
        }
    }

    #[test]
    fn an_error_is_told() {
        let source = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let timeout = Some(Duration::from_micros(1));
        let result = PreciseWait::new().wait(&source, &mut Vec::with_capacity(1), timeout);
        assert_eq!(result, Err(Errno::INVAL));
    }
}
