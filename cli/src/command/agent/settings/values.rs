//! Values of settings, as they are written in a file or on a command line.

use std::fmt::{self, Display};
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::recorded::ResourceRule;
use crate::command::seconds;

/// The time between two messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval(pub(super) Duration);

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let interval = seconds::seconds(text)?;
        let range = Duration::from_millis(100)..=Duration::from_secs(300);
        if range.contains(&interval) {
            Ok(Self(interval))
        } else {
            Err("expected a time from 0.1s to 5m".to_owned())
        }
    }
}

/// A sampling frequency per CPU, in Hz.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frequency(pub(super) u32);

impl FromStr for Frequency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let frequency = text.parse().ok();
        let frequency = frequency.filter(|it| (1..=20_000).contains(it));
        let frequency = frequency.ok_or("expected a number from 1 to 20000")?;
        Ok(Self(frequency))
    }
}

/// A part of a CPU; `None` for any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CpuPart(pub(super) Option<f64>);

impl FromStr for CpuPart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let percent = text
            .strip_suffix('%')
            .and_then(|it| it.trim_end().parse().ok());
        let percent = percent.filter(|it: &f64| (0.1..=100.0).contains(it));
        let percent = percent.ok_or("expected a part of a CPU from 0.1% to 100%, or none")?;
        Ok(Self(Some(percent / 100.0)))
    }
}

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size(pub(super) u64);

/// Units, each with its bytes as a power of two.
const UNITS: [(&str, u32); 7] = [
    ("KiB", 10),
    ("MiB", 20),
    ("GiB", 30),
    ("K", 10),
    ("M", 20),
    ("G", 30),
    ("", 0),
];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = UNITS.iter().find_map(|(unit, power)| {
            let number: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
            number.checked_mul(1 << power)
        });
        let size = size.filter(|it| *it <= 1 << 50);
        let size = size.ok_or("expected a size such as 64MiB, 1GiB or a number of bytes")?;
        Ok(Self(size))
    }
}

/// An address to listen on. A port alone is one of the loopback interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command::agent) struct ListenAddress(pub(in crate::command::agent) SocketAddr);

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = text.strip_prefix(':').unwrap_or(text);
        if let Ok(port) = port.parse() {
            return Ok(Self((Ipv4Addr::LOCALHOST, port).into()));
        }
        let address = text.parse().map(Self);
        address.map_err(|_| "expected a port, such as 9464, or ADDRESS:PORT".to_owned())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value that may be written as a text or as a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrNumber {
    Text(String),
    Integer(i64),
    Decimal(f64),
}

/// Reads a value as it would be on a command line.
pub(super) fn parsed<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let value = TextOrNumber::deserialize(deserializer);
    let text = match value.map_err(|_| D::Error::custom("expected a text or a number"))? {
        TextOrNumber::Text(text) => text,
        TextOrNumber::Integer(number) => number.to_string(),
        TextOrNumber::Decimal(number) => number.to_string(),
    };
    text.parse().map_err(D::Error::custom)
}

/// Values of files are read like those of command lines.
macro_rules! read_as_text {
    ($($value:ty)*) => {$(
        impl<'de> Deserialize<'de> for $value {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                parsed(deserializer)
            }
        }
    )*};
}

read_as_text!(Interval Frequency CpuPart Size ResourceRule);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_may_have_units() {
        for (text, size) in [
            ("0", 0),
            ("17", 17),
            ("2K", 2048),
            ("16MiB", 16 << 20),
            ("1 GiB", 1 << 30),
            ("3G", 3 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Size(size)), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5G", "1TB", "99999999999G", "1 M B"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_part_of_a_cpu_is_a_percentage() {
        for (text, part) in [
            ("1.5%", Some(0.015)),
            ("0.5 %", Some(0.005)),
            ("100%", Some(1.0)),
            ("none", None),
        ] {
            assert_eq!(text.parse(), Ok(CpuPart(part)), "{text}");
        }
        for text in ["", "%", "1.5", "0%", "0.09%", "101%", "-1%", "NaN%", "all"] {
            assert!(text.parse::<CpuPart>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_port_alone_is_of_the_loopback_interface() {
        for (text, address) in [
            ("9464", "127.0.0.1:9464"),
            (":9464", "127.0.0.1:9464"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:9464", "[::1]:9464"),
        ] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), address);
        }
        for text in ["", ":", "65536", "localhost:1", "1.2.3.4", "::1"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }
}
