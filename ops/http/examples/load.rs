//! Sends requests to a server over several connections, and measures their times.
//!
//! ```text
//! cargo run --release -p autobwd-http --example load -- --connections 4 --requests 20000
//! ```
//!
//! Each connection sends one request after the other. Prints one line of JSON, with times of requests in microseconds.

use std::{
    error::Error,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    num::NonZero,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use serde_json::json;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Sends requests to a server over several connections, and measures their times.
#[derive(Parser)]
struct Options {
    /// The address of the server
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    server: SocketAddr,
    /// Connections, each with a thread
    #[arg(long, value_name = "N", default_value = "4")]
    connections: NonZero<usize>,
    /// Number of requests, of all connections together
    #[arg(long, value_name = "N", default_value = "20000")]
    requests: NonZero<usize>,
    /// A file with the JSON of a request; by default, an image of 64 pixels
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
}

/// Sends one request and reads its answer.
fn ask(stream: &mut BufReader<TcpStream>, request: &[u8], answer: &mut Vec<u8>) -> Outcome<()> {
    stream.get_mut().write_all(request)?;
    let (mut line, mut length, mut status) = (String::new(), 0, String::new());
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        if status.is_empty() {
            status = line.trim().into();
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse()?
            }
            Some(_) => {}
            None if line.trim().is_empty() => break,
            None => {}
        }
    }
    answer.resize(length, 0);
    stream.read_exact(answer)?;
    match status.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => Err(format!("{status}: {}", String::from_utf8_lossy(answer)).into()),
    }
}

/// The times of a connection's requests.
fn connection(server: SocketAddr, request: &[u8], count: usize) -> Outcome<Vec<Duration>> {
    let stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    let (mut stream, mut answer) = (BufReader::new(stream), vec![]);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        ask(&mut stream, request, &mut answer)?;
        times.push(start.elapsed());
    }
    Ok(times)
}

fn main() -> Outcome<()> {
    let Options { server, connections, requests, body } = Options::parse();
    let (connections, requests) = (connections.get(), requests.get());
    let body = match body {
        Some(path) => fs::read_to_string(path)?,
        None => {
            json!({ "pixels": [(0..64).map(|i| f64::from(i % 17) / 16.0).collect::<Vec<f64>>()] }).to_string()
        }
    };
    let head = format!("POST /predict HTTP/1.1\r\nhost: {server}\r\ncontent-length: {}\r\n\r\n", body.len());
    let request = [head, body].concat().into_bytes();
    let start = Instant::now();
    let times = thread::scope(|scope| {
        let mut clients = vec![];
        for client in 0..connections {
            let (request, count) =
                (&request, requests / connections + usize::from(client < requests % connections));
            clients.push(scope.spawn(move || connection(server, request, count)));
        }
        let mut times = vec![];
        for client in clients {
            times.extend(client.join().map_err(|_| "a connection has panicked")??);
        }
        Outcome::Ok(times)
    });
    let (mut times, seconds) = (times?, start.elapsed().as_secs_f64());
    times.sort_unstable();
    let percentile = |p: usize| times[(times.len() - 1) * p / 100].as_nanos() as f64 / 1000.0;
    let line = json!({
        "requests": times.len(),
        "connections": connections,
        "p50_us": percentile(50),
        "p99_us": percentile(99),
        "requests_per_second": (times.len() as f64 / seconds).round(),
    });
    println!("{line}");
    Ok(())
}
