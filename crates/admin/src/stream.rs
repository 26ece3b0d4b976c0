//! A client's connection as hyper reads and writes it, which tells its place what happens.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::place::{Phase, Place};

const CHUNK: usize = 8192;

pub(crate) struct Stream {
    tcp: TcpStream,
    /// What was read before it was known to be HTTP.
    begin: Vec<u8>,
    place: Rc<Place>,
}

impl Stream {
    pub(crate) fn new(tcp: TcpStream, place: Rc<Place>) -> Self {
        Self { tcp, begin: Vec::new(), place }
    }

    /// Returns input that is to be read again.
    pub(crate) fn unread(&mut self, input: Vec<u8>) {
        self.begin = input;
    }

    pub(crate) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        chunk: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(chunk);
        ready!(Pin::new(&mut self.tcp).poll_read(cx, &mut buffer))?;
        let size = buffer.filled().len();
        if size > 0 {
            self.place.moves();
            if self.place.phase() == Phase::Resting {
                self.place.enter(Phase::Reading);
            }
        }
        Poll::Ready(Ok(size))
    }

    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let size = ready!(Pin::new(&mut self.tcp).poll_write(cx, bytes))?;
        self.place.moves();
        // A refusal of the request, which is not made by us.
        if matches!(self.place.phase(), Phase::Reading | Phase::Resting) {
            self.place.enter(Phase::Responding);
        }
        Poll::Ready(Ok(size))
    }

    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.begin.is_empty() {
            let size = this.begin.len().min(buffer.remaining());
            buffer.put_slice(&this.begin[..size]);
            this.begin.drain(..size);
            return Poll::Ready(Ok(()));
        }
        let mut chunk = [0; CHUNK];
        let room = chunk.len().min(buffer.remaining());
        let size = ready!(this.poll_receive(cx, &mut chunk[..room]))?;
        buffer.put_slice(&chunk[..size]);
        Poll::Ready(Ok(()))
    }
}

impl Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(cx, bytes)
    }

    /// Called when hyper has no output left.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let place = &self.place;
        if place.phase() == Phase::Responding && place.output() == 0 {
            place.enter(Phase::Resting);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_end(cx)
    }
}
