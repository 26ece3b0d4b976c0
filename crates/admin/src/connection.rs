//! One connection to the stats port, from its first byte to its close. Each phase has a time limit.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::net::TcpStream;

use crate::api;
use crate::body::Body;
use crate::http::{self, Speech};
use crate::place::{Over, Phase, Place};
use crate::server::Hub;
use crate::stats;
use crate::stream::Stream;

/// Most reads of ignored input before other connections are served.
const READS_MAX: usize = 8;

pub(crate) async fn serve(stream: TcpStream, place: &Rc<Place>, hub: &Rc<Hub>) {
    let peer = stream.peer_addr().ok();
    let mut stream = Stream::new(stream, Rc::clone(place));
    let Ok(input) = detect(&mut stream, place).await else { return };
    let stream = match http::speech(&input) {
        Speech::Http => {
            stream.unread(input);
            place.enter(Phase::Reading);
            let Some(stream) = serve_http(stream, place, hub, peer).await else { return };
            stream
        }
        Speech::Undecided | Speech::Other => {
            let json = stats::unasked(&hub.source());
            let Some(stream) = respond(stream, json, place, hub).await else { return };
            stream
        }
    };
    linger(stream, place).await;
}

/// Reads until it is clear what the client speaks, or the time for that is up.
async fn detect(stream: &mut Stream, place: &Place) -> io::Result<Vec<u8>> {
    let mut input = Vec::new();
    let mut chunk = [0; http::REQUEST_SIZE_MAX];
    let read = |cx: &mut Context<'_>| {
        loop {
            match stream.poll_receive(cx, &mut chunk) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(size)) => input.extend_from_slice(&chunk[..size]),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
            if http::speech(&input) != Speech::Undecided {
                return Poll::Ready(Ok(()));
            }
        }
    };
    match place.attend(read).await {
        Ok(Err(error)) => Err(error),
        Ok(Ok(())) | Err(Over) => Ok(input),
    }
}

/// The stream, unless it is of no more use.
async fn serve_http(
    stream: Stream,
    place: &Rc<Place>,
    hub: &Rc<Hub>,
    peer: Option<SocketAddr>,
) -> Option<Stream> {
    let service = service_fn(|request: Request<Incoming>| {
        Box::pin(async move {
            let response = match api::is_at(request.uri().path()) {
                true => {
                    place.enter(Phase::Waiting);
                    api::respond(request, hub, peer).await
                }
                false => http::respond(&request, hub, peer),
            };
            place.enter(Phase::Responding);
            let response = response.map(|bytes| Body::new(bytes, Rc::clone(place)));
            hub.bound_output(place);
            Ok::<_, Infallible>(response)
        })
    });
    let mut connection = http1::Builder::new()
        .half_close(true)
        .title_case_headers(true)
        .header_read_timeout(None)
        .max_buf_size(http::REQUEST_SIZE_MAX)
        .serve_connection(stream, service);
    let outcome = place.attend(|cx| connection.poll_without_shutdown(cx)).await;
    let stream = connection.into_parts().io;
    match (outcome, place.phase()) {
        _ if place.is_closing() => None,
        (Err(Over), Phase::Reading) => respond(stream, http::request_timeout(), place, hub).await,
        // The client has ended its side within a request.
        (Ok(_), Phase::Reading) => respond(stream, http::bad_request(), place, hub).await,
        (Err(Over), Phase::Waiting) => respond(stream, http::left(), place, hub).await,
        (Err(Over), Phase::Responding) => None,
        _ => Some(stream),
    }
}

/// Writes a response of our own. The stream, if that was done in time.
async fn respond(
    mut stream: Stream,
    output: Vec<u8>,
    place: &Rc<Place>,
    hub: &Rc<Hub>,
) -> Option<Stream> {
    place.enter(Phase::Responding);
    place.set_output(output.capacity());
    hub.bound_output(place);
    let mut written = 0;
    let write = |cx: &mut Context<'_>| {
        while written < output.len() {
            match stream.poll_send(cx, &output[written..]) {
                Poll::Ready(Ok(size)) => written += size,
                Poll::Ready(Err(_)) => return Poll::Ready(false),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(true)
    };
    let is_done = matches!(place.attend(write).await, Ok(true));
    place.set_output(0);
    is_done.then_some(stream)
}

async fn linger(mut stream: Stream, place: &Place) {
    place.enter(Phase::Lingering);
    let Ok(Ok(())) = place.attend(|cx| stream.poll_end(cx)).await else { return };
    let mut chunk = [0; http::REQUEST_SIZE_MAX];
    let drain = |cx: &mut Context<'_>| {
        for _ in 0..READS_MAX {
            match stream.poll_receive(cx, &mut chunk) {
                Poll::Ready(Ok(size)) if size > 0 => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    };
    // Too late or not, it is over.
    let _ = place.attend(drain).await;
}
