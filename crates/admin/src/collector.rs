//! A collector of OpenTelemetry: one export is one HTTP request on a connection of its own.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use cashew_config::snapshot::Tracing;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderMap, RETRY_AFTER};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{Method, Request, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// As the specification has it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most of an answer that is read.
const ANSWER_MAX: usize = 64 << 10;
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
const CHUNK: usize = 8192;

/// What came of an export.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Apart from so many spans, for the reason that is told.
    All {
        rejected: u64,
        why: String,
    },
    /// It may be taken later.
    Later {
        why: String,
        after: Option<Duration>,
    },
    Never {
        why: String,
    },
}

/// Never takes longer than the time limit.
pub(crate) async fn post(tracing: &Tracing, body: &Bytes) -> Taken {
    match timeout(TIMEOUT, exchange(tracing, body)).await {
        Ok(Ok(taken)) => taken,
        Ok(Err(why)) => Taken::Later { why, after: None },
        Err(_) => {
            let why = format!("no answer within {} s", TIMEOUT.as_secs());
            Taken::Later { why, after: None }
        }
    }
}

async fn exchange(tracing: &Tracing, body: &Bytes) -> Result<Taken, String> {
    let url = &tracing.endpoint;
    let tcp = TcpStream::connect((url.host.as_str(), url.port));
    let tcp = tcp.await.map_err(|error| format!("cannot connect: {error}"))?;
    let handshake = http1::Builder::new().max_buf_size(ANSWER_MAX).handshake(Io(tcp)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(&url.path)
        .header(HOST, url.authority())
        .header(CONTENT_TYPE, "application/json")
        .header(CONNECTION, "close");
    for (name, value) in &tracing.headers {
        request = request.header(name, value);
    }
    let request = request.body(Whole(body.clone())).map_err(|error| error.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        // What follows the head decides about nothing but what the collector says of single spans.
        let body = read(body).await.unwrap_or_default();
        Ok::<_, hyper::Error>(judge(head.status, &head.headers, &body))
    };
    // The connection has to be driven until the answer is there, and no longer.
    let mut connection = std::pin::pin!(connection);
    let mut answer = std::pin::pin!(answer);
    let mut is_over = false;
    std::future::poll_fn(|cx| {
        if !is_over {
            is_over = connection.as_mut().poll(cx).is_ready();
        }
        answer.as_mut().poll(cx)
    })
    .await
    .map_err(|error| format!("the connection failed: {error}"))
}

async fn read(mut body: Incoming) -> Result<Vec<u8>, hyper::Error> {
    let mut bytes = Vec::new();
    while bytes.len() < ANSWER_MAX {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        let Some(frame) = frame.transpose()? else { break };
        if let Some(data) = frame.data_ref() {
            bytes.extend_from_slice(data);
        }
    }
    Ok(bytes)
}

fn judge(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Taken {
    if status.is_success() {
        let (rejected, why) = rejected(body);
        return Taken::All { rejected, why };
    }
    let why = format!("answered {status}");
    // Those that the specification names.
    if !matches!(status.as_u16(), 429 | 502 | 503 | 504) {
        return Taken::Never { why };
    }
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let after = seconds.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
    Taken::Later { why, after }
}

/// How many spans were refused of an export that was taken, and why. Zero with a reason is a warning.
fn rejected(body: &[u8]) -> (u64, String) {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let partial = &answer["partialSuccess"];
    let count = &partial["rejectedSpans"];
    let count = count.as_u64().or_else(|| count.as_str()?.parse().ok());
    let why = partial["errorMessage"].as_str().unwrap_or_default();
    (count.unwrap_or_default(), why.to_owned())
}

/// The body of a request, sent again if need be.
struct Whole(Bytes);

impl HttpBody for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = std::mem::take(&mut self.0);
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// A connection as hyper reads and writes it.
struct Io(TcpStream);

impl Read for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut chunk = [0; CHUNK];
        let room = chunk.len().min(buffer.remaining());
        let mut read = ReadBuf::new(&mut chunk[..room]);
        ready!(Pin::new(&mut self.get_mut().0).poll_read(cx, &mut read))?;
        buffer.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl Write for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_worth_another_try_is_what_the_specification_says() {
        let judged = |status: u16, body: &str| {
            judge(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), body.as_bytes())
        };
        let all = |rejected, why: &str| Taken::All { rejected, why: why.to_owned() };
        assert_eq!(judged(200, "{}"), all(0, ""));
        assert_eq!(judged(202, "no json"), all(0, ""));
        let partial = r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}"#;
        assert_eq!(judged(200, partial), all(3, "too old"));
        for status in [429, 502, 503, 504] {
            assert!(matches!(judged(status, ""), Taken::Later { after: None, .. }), "{status}");
        }
        for status in [301, 400, 401, 404, 413, 500, 501] {
            assert!(matches!(judged(status, ""), Taken::Never { .. }), "{status}");
        }
        let later = |seconds: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, seconds.parse().unwrap())]);
            match judge(StatusCode::TOO_MANY_REQUESTS, &headers, b"") {
                Taken::Later { after, .. } => after.map(|it| it.as_secs()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(["2", "99999", "soon"].map(later), [Some(2), Some(30), None]);
    }
}
