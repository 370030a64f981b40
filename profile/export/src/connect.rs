//! A connection, with TLS if requested.

use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::protocol::Protocol;
use crate::proxy::Proxy;

/// This program's name in requests.
pub(crate) const NAME: &str = concat!("otelctx/", env!("CARGO_PKG_VERSION"));

/// The byte stream below a protocol.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Creates connections to an endpoint.
#[derive(Clone)]
pub(crate) struct Connector {
    endpoint: Arc<Endpoint>,
    #[cfg(feature = "tls")]
    tls: Option<tls::Tls>,
}

impl Connector {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Result<Self, Error> {
        #[cfg(feature = "tls")]
        let connector = Self {
            tls: tls::Tls::new(&endpoint)?,
            endpoint,
        };
        #[cfg(not(feature = "tls"))]
        let connector = if endpoint.is_https() {
            return Err(Error::WithoutTls {
                endpoint: endpoint.to_string(),
            });
        } else {
            Self { endpoint }
        };
        Ok(connector)
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the proxy that requests themselves are sent to: over other protocols than plain HTTP/1.1, it makes a tunnel.
    pub(crate) fn forwarding_proxy(&self) -> Option<&Proxy> {
        let is_plain = self.endpoint.protocol == Protocol::Http && !self.endpoint.is_https();
        self.endpoint.proxy.as_ref().filter(|_| is_plain)
    }

    /// Connects to a proxy, and through it to the endpoint unless it forwards requests.
    async fn connect_through(&self, proxy: &Proxy) -> Result<TcpStream, Error> {
        let failed = |why: std::io::Error| Error::Proxy {
            endpoint: self.endpoint.to_string(),
            reason: format!("{proxy}: {why}"),
        };
        let address = (&proxy.host[..], proxy.port);
        let mut stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        if self.forwarding_proxy().is_none() {
            let (host, port) = (self.endpoint.host(), self.endpoint.port());
            let tunnel = proxy.tunnel(&mut stream, host, port).await;
            tunnel.map_err(failed)?;
        }
        Ok(stream)
    }

    async fn connect_directly(&self) -> Result<TcpStream, Error> {
        let address = (self.endpoint.host(), self.endpoint.port());
        let unreachable = |why: std::io::Error| Error::Unreachable {
            endpoint: self.endpoint.to_string(),
            reason: why.to_string(),
            kind: why.kind(),
        };
        let stream = TcpStream::connect(address).await.map_err(unreachable)?;
        // A request is written in a few large pieces, and the last one should not be delayed.
        stream.set_nodelay(true).map_err(unreachable)?;
        Ok(stream)
    }

    pub(crate) async fn connect(&self) -> Result<TokioIo<Box<dyn Stream>>, Error> {
        let stream = match &self.endpoint.proxy {
            Some(proxy) => self.connect_through(proxy).await?,
            None => self.connect_directly().await?,
        };
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let stream = tls.handshake(stream).await.map_err(|why| Error::Tls {
                endpoint: self.endpoint.to_string(),
                reason: why.to_string(),
            })?;
            return Ok(TokioIo::new(Box::new(stream)));
        }
        Ok(TokioIo::new(Box::new(stream)))
    }
}

#[cfg(feature = "tls")]
mod tls {
    use std::io;
    use std::path::Path;
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;

    use crate::endpoint::Endpoint;
    use crate::error::Error;
    use crate::protocol::Protocol;

    #[derive(Clone)]
    pub(super) struct Tls {
        name: ServerName<'static>,
        connector: TlsConnector,
    }

    impl Tls {
        /// `None` for `http://`.
        pub(super) fn new(endpoint: &Endpoint) -> Result<Option<Self>, Error> {
            if !endpoint.is_https() {
                return Ok(None);
            }
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let wrong = |reason: String| Error::Endpoint {
                url: endpoint.to_string(),
                reason,
            };
            let name = ServerName::try_from(endpoint.host().to_owned());
            let name = name.map_err(|why| wrong(why.to_string()))?;
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|why| wrong(why.to_string()))?
                .with_root_certificates(authorities(endpoint)?);
            let mut config = match &endpoint.client_certificate {
                None => config.with_no_client_auth(),
                Some((certificate, key)) => {
                    let invalid = |path: &Path, reason: String| Error::ClientCertificate {
                        path: path.to_owned(),
                        reason,
                    };
                    let chain = CertificateDer::pem_file_iter(certificate)
                        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                        .map_err(|why| invalid(certificate, why.to_string()))?;
                    let key_der = PrivateKeyDer::from_pem_file(key)
                        .map_err(|why| invalid(key, why.to_string()))?;
                    let config = config.with_client_auth_cert(chain, key_der);
                    config.map_err(|why| invalid(certificate, why.to_string()))?
                }
            };
            config.alpn_protocols = match endpoint.protocol {
                Protocol::Grpc => vec![b"h2".to_vec()],
                Protocol::Http => vec![b"http/1.1".to_vec()],
            };
            Ok(Some(Self {
                name,
                connector: Arc::new(config).into(),
            }))
        }

        pub(super) async fn handshake(
            &self,
            stream: TcpStream,
        ) -> io::Result<TlsStream<TcpStream>> {
            self.connector.connect(self.name.clone(), stream).await
        }
    }

    /// The certificates of the file in the options, or of this machine.
    fn authorities(endpoint: &Endpoint) -> Result<RootCertStore, Error> {
        let wrong = |reason: String| Error::Certificates {
            path: endpoint.certificate.clone(),
            reason,
        };
        let mut store = RootCertStore::empty();
        let (found, trouble): (Vec<CertificateDer<'static>>, _) = match &endpoint.certificate {
            Some(path) => {
                let certificates = CertificateDer::pem_file_iter(path)
                    .and_then(Iterator::collect::<Result<Vec<_>, _>>);
                (certificates.map_err(|why| wrong(why.to_string()))?, None)
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                let trouble = found.errors.first().map(ToString::to_string);
                (found.certs, trouble)
            }
        };
        // Certificates that rustls cannot parse do not affect the others.
        if store.add_parsable_certificates(found).0 == 0 {
            return Err(wrong(trouble.unwrap_or("there are none".into())));
        }
        Ok(store)
    }
}
