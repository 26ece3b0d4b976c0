//! The body of a response, handed on in pieces, so that what is left is known and can be bounded.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};

use crate::place::Place;

/// Pieces are copied once on their way; larger ones would be held twice.
const PIECE: usize = 16 << 10;

pub(crate) struct Body {
    left: Bytes,
    /// Knows that it holds this body for as long as there is one.
    place: Rc<Place>,
}

impl Body {
    pub(crate) fn new(bytes: Vec<u8>, place: Rc<Place>) -> Self {
        place.set_output(bytes.capacity());
        Self { left: bytes.into(), place }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.place.set_output(0);
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let size = self.left.len().min(PIECE);
        let piece = self.left.split_to(size);
        Poll::Ready((size > 0).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}
