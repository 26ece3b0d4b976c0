//! The discovery child: what the master says on one side, Sentinels and servers on the other.

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use cashew_config::Snapshot;
use cashew_control::{ChildChannel, Epoch, ReceiveError, SendError, ToChild, ToMaster};
use cashew_discovery::{News, Watch};
use cashew_process::drop_privileges;
use rustix::event::{PollFd, PollFlags, poll};
use tracing::warn;

use crate::admin::log_or_warn;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Watches until the master says to stop or is gone.
pub(crate) fn serve(control: OwnedFd) -> Result<()> {
    let mut child =
        Child { channel: ChildChannel::new(control), watch: None, begun: None, prepared: None };
    loop {
        while let Some((message, descriptors)) = match child.channel.receive() {
            Ok(message) => message,
            Err(ReceiveError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        } {
            if message == ToChild::Shutdown {
                return Ok(());
            }
            if let Err(error) = child.obey(message, descriptors) {
                child.say(&ToMaster::Failed { why: error.to_string() })?;
                return Err(error);
            }
        }
        child.watch()?;
    }
}

struct Child {
    channel: ChildChannel,
    /// Once the master has said to start.
    watch: Option<Watch>,
    begun: Option<Snapshot>,
    /// The next epoch, until it is committed or aborted.
    prepared: Option<(u64, Snapshot)>,
}

impl Child {
    fn obey(&mut self, message: ToChild, descriptors: Vec<OwnedFd>) -> Result<()> {
        match message {
            ToChild::Init { .. } => {
                let snapshot = open(descriptors)?;
                drop_privileges(snapshot.global.user.as_deref(), snapshot.global.group.as_deref())?;
                self.begun = Some(snapshot);
            }
            ToChild::Start => {
                let snapshot = self.begun.take().ok_or("there is nothing to watch")?;
                self.watch = Some(Watch::new(&snapshot, Instant::now()));
                self.say(&ToMaster::Ready)?;
            }
            ToChild::Prepare { epoch, .. } => {
                let answer = match open(descriptors) {
                    Ok(snapshot) => {
                        self.prepared = Some((epoch, snapshot));
                        ToMaster::Prepared { epoch }
                    }
                    Err(error) => ToMaster::Refused { epoch, why: error.to_string() },
                };
                self.say(&answer)?;
            }
            ToChild::Commit { epoch } => {
                let prepared = self.prepared.take().filter(|(number, _)| *number == epoch);
                // Who was started since the change was decided began with its epoch.
                if let (Some((_, snapshot)), Some(watch)) = (prepared, &mut self.watch) {
                    watch.put_into_effect(&snapshot, Instant::now());
                }
                self.say(&ToMaster::Committed { epoch })?;
            }
            ToChild::Abort { .. } => self.prepared = None,
            other => log_or_warn(other, &descriptors),
        }
        Ok(())
    }

    /// Goes on watching, tells the master what has come about, and waits for more.
    fn watch(&mut self) -> Result<()> {
        let Some(watch) = &mut self.watch else {
            return wait(&self.channel, PollFlags::IN);
        };
        watch.advance(Instant::now());
        let news: Vec<News> = std::iter::from_fn(|| watch.poll_news()).collect();
        for news in news {
            self.say(&message(news))?;
        }
        let Some(watch) = &self.watch else { return Ok(()) };
        Ok(watch.wait(Some(self.channel.as_fd()), None)?)
    }

    /// The master always reads on, so waiting for it to do so ends.
    fn say(&self, message: &ToMaster) -> Result<()> {
        loop {
            match self.channel.send(message, &[]) {
                Err(SendError::WouldBlock) => wait(&self.channel, PollFlags::OUT)?,
                // It is gone, which receiving tells.
                Err(SendError::Closed) => return Ok(()),
                Err(error @ SendError::TooLarge(_)) => {
                    warn!("{error}");
                    return Ok(());
                }
                done => return Ok(done?),
            }
        }
    }
}

fn message(news: News) -> ToMaster {
    match news {
        News::Primary { pool, server, to, config_epoch, why } => {
            ToMaster::Primary { pool, server, host: to.host, port: to.port, config_epoch, why }
        }
        News::Group { pool, server, state, config_epoch, primary, lineage } => {
            let state = state.name().to_owned();
            ToMaster::Group { pool, server, state, config_epoch, primary, lineage }
        }
        News::Sentinel { pool, sentinel, failure } => {
            ToMaster::Sentinel { pool, host: sentinel.host, port: sentinel.port, failure }
        }
    }
}

fn open(descriptors: Vec<OwnedFd>) -> Result<Snapshot> {
    let epoch = descriptors.into_iter().next().ok_or("the epoch is missing")?;
    Ok(Epoch::unseal(epoch)?.snapshot)
}

fn wait(channel: &ChildChannel, until: PollFlags) -> Result<()> {
    match poll(&mut [PollFd::new(channel, until)], None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
