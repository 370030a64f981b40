//! Sends requests to the service.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

const CLIENTS: u32 = 4;

/// Sends requests until the service ends.
pub(crate) fn run(address: SocketAddr) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                // The service ends the connection when it ends.
                let _ = send_all(address, client);
            });
        }
    });
}

fn send_all(address: SocketAddr, client: u32) -> std::io::Result<()> {
    let stream = TcpStream::connect(address)?;
    let mut answers = BufReader::new(stream.try_clone()?);
    for number in 0_u32.. {
        let path = match number % 4 {
            0 => "/search/shoes".into(),
            1 => "/health".into(),
            _ => format!("/cart/{}", client + number),
        };
        let request = format!("GET {path} HTTP/1.1\r\nhost: shop\r\n\r\n");
        (&stream).write_all(request.as_bytes())?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            answers.read_line(&mut line)?;
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line.trim().is_empty() {
                break;
            }
        }
        answers.read_exact(&mut vec![0; length])?;
    }
    Ok(())
}
