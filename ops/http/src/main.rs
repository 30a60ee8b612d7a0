//! The server.

use std::{error::Error, net::SocketAddr, num::NonZero, path::PathBuf, process::ExitCode, time::Duration};

use autobwd::{Program, Scope};
use autobwd_http::{ServerOptions, router, serve};
use autobwd_ops::Model;
use clap::Parser;
use tokio::{net::TcpListener, runtime};

/// Serves a saved model over HTTP
#[derive(Parser)]
struct Options {
    /// The program with its signature, as `Program::save` writes it
    program: PathBuf,
    /// The weights, as `Scope::save` writes them
    weights: PathBuf,
    /// The address to listen on; port 0 for any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Threads that run the model, by default as many as the machine has
    #[arg(long, value_name = "N")]
    workers: Option<NonZero<usize>>,
    /// The most waiting requests that are rows of one run; exact for models whose rows are independent
    #[arg(long, value_name = "N", default_value = "1")]
    batch: NonZero<usize>,
    /// The longest time of a request in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    timeout: NonZero<u32>,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The model for inference of a program with these weights, which may also have the state of an optimizer.
fn load(options: &Options) -> autobwd::Result<Model> {
    let (program, mut scope) = (Program::load(&options.program)?, Scope::new());
    scope.load(&options.weights)?;
    Model::for_inference(&program, &scope, &[])
}

/// Waits until the process is told to end: by Ctrl-C, or by the signal that process managers send.
#[cfg(unix)]
async fn termination() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return interrupt().await };
    tokio::select! {
        () = interrupt() => {}
        _ = terminate.recv() => {}
    }
}

#[cfg(not(unix))]
async fn termination() {
    interrupt().await;
}

async fn interrupt() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without a handler, Ctrl-C ends the process by itself.
        std::future::pending::<()>().await;
    }
}

fn run(options: &Options) -> Outcome<()> {
    let defaults = ServerOptions::default();
    let timeout = Duration::from_secs(options.timeout.get().into());
    let server = ServerOptions {
        workers: options.workers.unwrap_or(defaults.workers),
        batch: options.batch,
        timeout,
        ..defaults
    };
    let router = router(load(options)?, &server)?;
    // The model runs in threads of its own; the runtime only moves bytes.
    runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(options.listen).await?;
        println!("listening on http://{}", listener.local_addr()?);
        serve(listener, router, termination(), timeout).await?;
        Ok(())
    })
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("autobwd-http: {e}");
            ExitCode::FAILURE
        }
    }
}
