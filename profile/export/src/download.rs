//! Downloads files over HTTP/1.1, such as debug information from a debuginfod server.

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use tokio::runtime::{Builder, Runtime};
use tokio::time;

use crate::connect::{Connector, NAME};
use crate::proxy::Proxy;
use crate::{Endpoint, Error, Protocol, endpoint};

/// Maximum size of a response's head, in bytes.
const MAX_HEAD: usize = 64 << 10;

/// Downloads files from one server. Redirects are not followed, and nothing is retried.
pub struct Downloads {
    connector: Connector,
    /// The path of the server's URL, without a slash at its end.
    base: String,
    limits: DownloadLimits,
    /// The time that all downloads have taken so far.
    spent: Duration,
    runtime: Runtime,
}

/// Limits of a download.
#[derive(Clone, Copy, Debug)]
pub struct DownloadLimits {
    /// Maximum size of a file, in bytes.
    pub size: u64,
    /// Maximum time until the connection and the start of the response, and until each further
    /// piece.
    pub stall: Duration,
    /// Maximum time of all downloads together.
    pub total: Duration,
}

impl Default for DownloadLimits {
    /// 2 GiB, which is more than the debug information of a browser; 30 s without any progress, as a
    /// server may have to unpack an archive first; ten minutes.
    fn default() -> Self {
        Self {
            size: 2 << 30,
            stall: Duration::from_secs(30),
            total: Duration::from_secs(600),
        }
    }
}

/// The reason why a file could not be downloaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownloadError {
    /// The URL is invalid, or a connection cannot be prepared.
    #[error(transparent)]
    Prepare(Error),
    /// The URL is not that of a server.
    #[error("{url:?} is not a valid URL: {reason}")]
    Url {
        /// The URL, without user, password and query.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No connection could be established.
    #[error("cannot connect to {server}: {reason}")]
    Unreachable {
        /// The URL.
        server: String,
        /// The error.
        reason: String,
    },
    /// The server did not respond, or stopped responding.
    #[error("{server} sent nothing for {} s, or its files took more than {} s together", limits.stall.as_secs_f64(), limits.total.as_secs_f64())]
    TimedOut {
        /// The URL.
        server: String,
        /// The limits.
        limits: DownloadLimits,
    },
    /// The server refused the request, or redirected it.
    #[error("{server} responded with {status}")]
    Status {
        /// The URL.
        server: String,
        /// The status.
        status: StatusCode,
    },
    /// The file is too large.
    #[error("{server} has a file of more than {} MiB", limit >> 20)]
    TooLarge {
        /// The URL.
        server: String,
        /// The limit, in bytes.
        limit: u64,
        /// True if the server announced the size before it sent any data.
        is_announced: bool,
    },
    /// The response is truncated, or is not HTTP/1.
    #[error("{server} sent an invalid response: {reason}")]
    Invalid {
        /// The URL.
        server: String,
        /// What is wrong.
        reason: String,
    },
    /// The file cannot be written.
    #[error("a download cannot be written: {0}")]
    Write(#[source] io::Error),
}

impl DownloadError {
    /// Returns true if the next request to the server is likely to fail as well.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            // The response had no content: asking for another file is cheap.
            Self::TooLarge { is_announced, .. } => !is_announced,
            Self::Status { status, .. } => !status.is_client_error(),
            _ => true,
        }
    }
}

impl Downloads {
    /// Prepares downloads from `url`, without connecting yet, through the proxy of `HTTPS_PROXY` or `HTTP_PROXY` if it is set.
    ///
    /// # Errors
    ///
    /// [`DownloadError::Url`] and [`DownloadError::Prepare`].
    pub fn new(url: &str, limits: DownloadLimits) -> Result<Self, DownloadError> {
        if url.contains('@') {
            return Err(DownloadError::Url {
                url: "…@…".to_owned(),
                reason: "users and passwords are not supported".to_owned(),
            });
        }
        let uri = endpoint::parse(url).map_err(|error| match error {
            Error::Endpoint { url, reason } => DownloadError::Url { url, reason },
            error => DownloadError::Prepare(error),
        })?;
        let mut endpoint = Endpoint::of(uri, Protocol::Http);
        let proxy = Proxy::from_environment(&endpoint.uri, |name| env::var(name).ok());
        endpoint.proxy = proxy.map_err(DownloadError::Prepare)?;
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_io().enable_time().build();
        let prepare = |why: io::Error| DownloadError::Prepare(Error::Prepare(why.to_string()));
        Ok(Self {
            base: endpoint.uri.path().trim_end_matches('/').to_owned(),
            connector: Connector::new(Arc::new(endpoint)).map_err(DownloadError::Prepare)?,
            limits,
            spent: Duration::ZERO,
            runtime: runtime.map_err(prepare)?,
        })
    }

    /// Downloads the file at `path`, which starts with a slash, below the server's URL into `file`.
    /// False if the server does not have it.
    ///
    /// # Errors
    ///
    /// If it could not be downloaded; `file` may have a part of it.
    pub fn get(&mut self, path: &str, file: &mut File) -> Result<bool, DownloadError> {
        let Self {
            connector,
            limits,
            spent,
            runtime,
            base,
        } = self;
        let left = limits.total.saturating_sub(*spent);
        if left.is_zero() {
            return Err(timed_out(connector, *limits));
        }
        let path = format!("{base}{path}");
        let download = download(connector, &path, *limits, file);
        let start = Instant::now();
        let done = runtime.block_on(async { time::timeout(left, download).await });
        *spent += start.elapsed();
        done.unwrap_or_else(|_| Err(timed_out(connector, *limits)))
    }
}

fn timed_out(connector: &Connector, limits: DownloadLimits) -> DownloadError {
    DownloadError::TimedOut {
        server: connector.endpoint().to_string(),
        limits,
    }
}

async fn download(
    connector: &Connector,
    path: &str,
    limits: DownloadLimits,
    file: &mut File,
) -> Result<bool, DownloadError> {
    let server = || connector.endpoint().to_string();
    let late = |_| timed_out(connector, limits);
    let invalid = |why: hyper::Error| DownloadError::Invalid {
        server: server(),
        reason: why.to_string(),
    };
    let response = time::timeout(limits.stall, request(connector, path));
    let response = response.await.map_err(late)??;
    let status = response.status();
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Ok(false),
        status => {
            let server = server();
            return Err(DownloadError::Status { server, status });
        }
    }
    let too_large = |is_announced| DownloadError::TooLarge {
        server: server(),
        limit: limits.size,
        is_announced,
    };
    let announced = response.headers().get(CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limits.size) {
        return Err(too_large(true));
    }
    let (mut body, mut size) = (response.into_body(), 0);
    while let Some(frame) = time::timeout(limits.stall, body.frame())
        .await
        .map_err(late)?
    {
        let Ok(piece) = frame.map_err(invalid)?.into_data() else {
            continue;
        };
        size += piece.len() as u64;
        if size > limits.size {
            return Err(too_large(false));
        }
        file.write_all(&piece).map_err(DownloadError::Write)?;
    }
    Ok(true)
}

/// Sends a request over a new connection: files are few and large.
async fn request(connector: &Connector, path: &str) -> Result<Response<Incoming>, DownloadError> {
    let endpoint = connector.endpoint();
    let unreachable = |why: Error| DownloadError::Unreachable {
        server: endpoint.to_string(),
        reason: match why {
            Error::Unreachable { reason, .. } | Error::Tls { reason, .. } => reason,
            why => why.to_string(),
        },
    };
    let invalid = |why: &dyn std::error::Error| DownloadError::Invalid {
        server: endpoint.to_string(),
        reason: why.to_string(),
    };
    let stream = connector.connect().await.map_err(unreachable)?;
    let mut builder = http1::Builder::new();
    let handshake = builder.max_buf_size(MAX_HEAD).handshake(stream);
    let (mut connection, driver) = handshake.await.map_err(|why| invalid(&why))?;
    // It ends with the connection; the request returns its errors.
    tokio::spawn(driver);
    let authority = endpoint.uri.authority().map_or("", |found| found.as_str());
    let mut request = Request::get(path);
    if let Some(proxy) = connector.forwarding_proxy() {
        request = Request::get(format!("http://{authority}{path}"));
        if let Some(authorization) = &proxy.authorization {
            request = request.header(PROXY_AUTHORIZATION, authorization);
        }
    }
    let request = request
        .header(HOST, authority)
        .header(USER_AGENT, HeaderValue::from_static(NAME))
        .body(Empty::<Bytes>::new())
        .map_err(|why| invalid(&why))?;
    let response = connection.send_request(request).await;
    response.map_err(|why| invalid(&why))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Short, for servers that never respond.
    const LIMITS: DownloadLimits = DownloadLimits {
        size: 1 << 20,
        stall: Duration::from_millis(500),
        total: Duration::from_secs(2),
    };

    /// Reads the head of a request. A client takes a response that comes before it as an error.
    fn read_head(stream: &mut TcpStream) -> Vec<u8> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        head
    }

    /// Downloads from a server that answers each request with `answer`.
    fn get(
        limits: DownloadLimits,
        answer: impl Fn(TcpStream) + Send + 'static,
    ) -> (Result<bool, DownloadError>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(read_head(&mut stream).starts_with(b"GET /base/a/b HTTP/1.1\r\n"));
            answer(stream);
        });
        let mut downloads = Downloads::new(&format!("http://{address}/base/"), limits).unwrap();
        let path = std::env::temp_dir().join(format!("otelctx-download-{}", address.port()));
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let mut file = options.open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let result = downloads.get("/a/b", &mut file);
        let mut content = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut content).unwrap();
        (result, content)
    }

    fn answers(text: &'static [u8]) -> impl Fn(TcpStream) + Send + 'static {
        move |mut stream| stream.write_all(text).unwrap()
    }

    fn patient() -> DownloadLimits {
        DownloadLimits {
            size: LIMITS.size,
            ..DownloadLimits::default()
        }
    }

    #[test]
    fn a_file_is_downloaded_or_not_there() {
        let chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        let (result, content) = get(patient(), answers(chunks));
        assert_eq!((result.unwrap(), &content[..]), (true, &b"abcde"[..]));
        let absent = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno";
        let (result, content) = get(patient(), answers(absent));
        assert_eq!((result.unwrap(), &content[..]), (false, &b""[..]));
    }

    #[test]
    fn other_responses_are_errors() {
        let moved =
            b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n";
        let (result, _) = get(patient(), answers(moved));
        assert!(matches!(result, Err(DownloadError::Status { status, .. }) if status == 302));
        for garbage in [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], b"\x7fELF", b""] {
            let (result, _) = get(patient(), answers(garbage));
            let error = result.unwrap_err();
            assert!(matches!(error, DownloadError::Invalid { .. }), "{error}");
            assert!(error.is_lasting());
        }
        let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc";
        let (result, _) = get(patient(), answers(cut));
        assert!(matches!(result, Err(DownloadError::Invalid { .. })));
    }

    #[test]
    fn too_large_a_file_is_not_downloaded() {
        let announced = b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\nabc";
        let endless = |mut stream: TcpStream| {
            let head = b"HTTP/1.1 200 OK\r\n\r\n";
            let _ = stream.write_all(head);
            while stream.write_all(&[0; 4096]).is_ok() {}
        };
        let (one, content) = get(patient(), answers(announced));
        assert_eq!(content, b"");
        let (other, content) = get(patient(), endless);
        assert!(content.len() as u64 <= LIMITS.size);
        for (result, is_lasting) in [(one, false), (other, true)] {
            let error = result.unwrap_err();
            assert!(matches!(error, DownloadError::TooLarge { .. }), "{error}");
            assert_eq!(error.is_lasting(), is_lasting);
        }
    }

    #[test]
    fn a_server_that_hangs_is_given_up() {
        let silent = |mut stream: TcpStream| drop(stream.read(&mut [0]));
        let slow = |mut stream: TcpStream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while stream.write_all(b"a").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        for (result, _) in [get(LIMITS, silent), get(LIMITS, slow)] {
            let error = result.unwrap_err();
            assert!(matches!(error, DownloadError::TimedOut { .. }), "{error}");
            assert!(error.is_lasting());
        }
    }

    /// Many files of a slow server take no longer than one.
    #[test]
    fn all_downloads_share_their_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut downloads = Downloads::new(&url, patient()).unwrap();
        let path = std::env::temp_dir().join(format!("otelctx-time-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            read_head(&mut stream);
            let absent = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(absent).unwrap();
            listener
        });
        assert!(!downloads.get("/a", &mut file).unwrap());
        assert_ne!(downloads.spent, Duration::ZERO);
        let listener = server.join().unwrap();
        listener.set_nonblocking(true).unwrap();
        downloads.spent = downloads.limits.total;
        let error = downloads.get("/a", &mut file).unwrap_err();
        assert!(matches!(error, DownloadError::TimedOut { .. }), "{error}");
        let asked = listener.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(asked, Err(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn only_http_is_accepted() {
        for url in [
            "file:///etc/passwd",
            "ftp://a/b",
            "a",
            "http://user:secret@a",
        ] {
            let error = Downloads::new(url, LIMITS).err().unwrap();
            assert!(matches!(error, DownloadError::Url { .. }), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
