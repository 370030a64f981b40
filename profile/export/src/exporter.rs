//! Sends a profile, one message after another.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use otelctx_profile::{Options, Profile};
use tokio::runtime::{Builder, Runtime};
use tokio::time;

use crate::answer::{Again, Answer, Failure};
use crate::attempt::{Cancel, Message, Retry, Unsent};
use crate::connect::Connector;
use crate::grpc::Grpc;
use crate::http1::Http;
use crate::sent::{Failed, Sent};
use crate::{Endpoint, Error, Protocol};

/// Maximum delay before a retry. If the collector requests a longer one, there is no retry.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Sends profiles to an endpoint, over one connection as long as it lasts.
pub struct Exporter {
    endpoint: Arc<Endpoint>,
    connector: Connector,
    client: Client,
    /// Runs on this thread while something is sent; `None` only while it is dropped.
    runtime: Option<Runtime>,
}

enum Client {
    Grpc(Grpc),
    Http(Http),
}

impl Client {
    async fn send(&mut self, body: Bytes) -> Result<Answer, Failure> {
        match self {
            Self::Grpc(client) => client.send(body).await,
            Self::Http(client) => client.send(body).await,
        }
    }
}

impl Exporter {
    /// Creates an exporter, without connecting yet.
    ///
    /// # Errors
    ///
    /// [`Error::Certificates`], [`Error::WithoutTls`], [`Error::Endpoint`], [`Error::Prepare`].
    pub fn new(endpoint: &Endpoint) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|why| Error::Prepare(why.to_string()))?;
        let endpoint = Arc::new(endpoint.clone());
        let connector = Connector::new(endpoint.clone())?;
        let client = match endpoint.protocol {
            Protocol::Grpc => {
                let _within = runtime.enter();
                Client::Grpc(Grpc::new(connector.clone())?)
            }
            Protocol::Http => Client::Http(Http::new(connector.clone())),
        };
        Ok(Self {
            endpoint,
            connector,
            client,
            runtime: Some(runtime),
        })
    }

    /// Checks whether a connection can be established now, to detect errors before there is
    /// anything to send.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`], [`Error::Tls`], [`Error::TimedOut`].
    pub fn reach(&self) -> Result<(), Error> {
        let connecting = async { self.connector.connect().await.map(drop) };
        let limit = self.endpoint.timeout;
        let runtime = self.runtime.as_ref().expect("there until dropped");
        let connected = runtime.block_on(async { time::timeout(limit, connecting).await });
        connected.unwrap_or_else(|_| Err(self.timed_out()))
    }

    /// Sends a profile, in as many messages as necessary. Each takes at most
    /// [`attempts`](Endpoint::attempts) times [`timeout`](Endpoint::timeout) plus the delays
    /// between attempts; after a message that failed, no further one is sent.
    ///
    /// # Errors
    ///
    /// [`Failed`], which also counts the messages that were accepted before.
    pub fn send(&mut self, profile: &Profile, options: &Options) -> Result<Sent, Failed> {
        let mut sent = Sent::default();
        for message in profile.otlp_messages(options, self.endpoint.message_size) {
            let message = self.message(message);
            match self.send_message(&message.body) {
                Ok(answer) => sent.add(message.size, answer),
                Err((why, attempts)) => {
                    return Err(Failed {
                        why,
                        attempts,
                        sent,
                    });
                }
            }
        }
        Ok(sent)
    }

    /// Prepares an encoded message, a `ProfilesData`, for [`Self::attempt`].
    #[must_use]
    pub fn message(&self, encoded: Vec<u8>) -> Message {
        let size = encoded.len();
        let body = match &self.client {
            Client::Grpc(_) => encoded.into(),
            Client::Http(client) => client.body(encoded),
        };
        Message { body, size }
    }

    /// Attempts once to send a message, for at most [`timeout`](Endpoint::timeout), or until it is cancelled. For callers
    /// that keep messages and decide themselves when to retry.
    ///
    /// # Errors
    ///
    /// [`Unsent`], which says whether OTLP permits to send the message again.
    pub fn attempt(&mut self, message: &Message, cancel: &Cancel) -> Result<Sent, Unsent> {
        let limit = self.endpoint.timeout;
        let runtime = self.runtime.as_ref().expect("there until dropped");
        let sending = self.client.send(message.body.clone());
        let answer = runtime.block_on(async {
            let mut sending = pin!(time::timeout(limit, sending));
            let mut cancelled = pin!(cancel.cancelled());
            poll_fn(|context| match sending.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending => cancelled.as_mut().poll(context).map(|()| None),
            })
            .await
        });
        let failure = match answer {
            Some(Ok(Ok(answer))) => {
                let mut sent = Sent::default();
                sent.add(message.size, answer);
                return Ok(sent);
            }
            Some(Ok(Err(failure))) => failure,
            Some(Err(_)) => Failure::for_now(self.timed_out()),
            None => Failure::for_now(Error::Cancelled {
                endpoint: self.endpoint.to_string(),
            }),
        };
        Err(Unsent {
            retry: match failure.again {
                // A certificate may be renewed, and a collector may take the place of something else.
                Again::Never if failure.is_unread => Retry::Later,
                Again::Never => Retry::Never,
                Again::Later => Retry::Later,
                Again::After(asked) => Retry::After(asked),
            },
            error: failure.error,
        })
    }

    /// Sends one message, with retries.
    fn send_message(&mut self, body: &Bytes) -> Result<Answer, (Error, u32)> {
        let mut pause = self.endpoint.pause;
        for attempt in 1.. {
            let failure = match self.attempt_once(body) {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let wait = match failure.again {
                Again::Never => None,
                // Between half of the delay and all of it.
                Again::Later => Some(pause.mul_f64(1.0 - fastrand::f64() / 2.0)),
                Again::After(asked) => (asked <= MAX_RETRY_DELAY).then_some(asked),
            };
            match wait {
                Some(wait) if attempt < self.endpoint.attempts => std::thread::sleep(wait),
                _ => return Err((failure.error, attempt)),
            }
            pause = pause.saturating_mul(2).min(MAX_RETRY_DELAY);
        }
        unreachable!("attempts end")
    }

    fn attempt_once(&mut self, body: &Bytes) -> Result<Answer, Failure> {
        let limit = self.endpoint.timeout;
        let runtime = self.runtime.as_ref().expect("there until dropped");
        let sending = self.client.send(body.clone());
        let answer = runtime.block_on(async { time::timeout(limit, sending).await });
        answer.unwrap_or_else(|_| Err(Failure::for_now(self.timed_out())))
    }

    fn timed_out(&self) -> Error {
        Error::TimedOut {
            endpoint: self.endpoint.to_string(),
            waited: self.endpoint.timeout,
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // Do not wait for a lookup of the host's name that hangs.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
