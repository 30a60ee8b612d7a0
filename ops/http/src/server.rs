//! Routes, limits and the end of the server.

use std::{io, num::NonZero, sync::Arc, thread, time::Duration};

use autobwd::{Error, ErrorKind, Result};
use autobwd_ops::Model;
use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State, rejection::BytesRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::sleep};
use tower_http::timeout::TimeoutLayer;

use crate::{served_model::ServedModel, workers::Workers};

/// How a model is served.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Threads that run the model; by default, as many as the machine has.
    pub workers: NonZero<usize>,
    /// The most requests that a thread takes for one run; 1 by default. More are exact for models whose rows are
    /// independent alone.
    pub batch: NonZero<usize>,
    /// The most requests that wait for a thread; others are refused with status 503. 1,024 by default.
    pub waiting: usize,
    /// The longest body of a request in bytes; others are refused with status 413. 1 MiB by default.
    pub body_bytes: usize,
    /// How long a request takes, and how long requests may go on after the server is told to end. 10 seconds by default.
    pub timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            workers: thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN),
            batch: NonZero::<usize>::MIN,
            waiting: 1024,
            body_bytes: 1 << 20,
            timeout: Duration::from_secs(10),
        }
    }
}

/// What requests share.
struct Service {
    workers: Workers,
    description: Value,
}

/// The routes of a model: `GET /`, `GET /health`, `GET /model` and `POST /predict`.
///
/// # Errors
/// A program without signature, or one that writes a value that it keeps; the system has no threads.
pub fn router(model: Model, options: &ServerOptions) -> Result<Router> {
    // A plan for each number of rows that a batch of requests with one row may have.
    let model = ServedModel::new(model, options.batch.get().max(16))?;
    let workers = Workers::start(&model, options.workers.get(), options.waiting, options.batch.get())
        .map_err(|e| Error::new(ErrorKind::Io, format!("cannot start the threads of the model: {e}")))?;
    let service = Arc::new(Service { workers, description: model.description().clone() });
    Ok(Router::new()
        .route("/", get(async || Html(include_str!("page.html"))))
        .route("/health", get(async || Json(json!({ "status": "ok" }))))
        .route("/model", get(async |State(service): State<Arc<Service>>| Json(service.description.clone())))
        .route("/predict", post(predict))
        .layer(DefaultBodyLimit::max(options.body_bytes))
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, options.timeout))
        .with_state(service))
}

async fn predict(
    State(service): State<Arc<Service>>,
    body: std::result::Result<Bytes, BytesRejection>,
) -> Response {
    let failure = |status: StatusCode, text: String| (status, Json(json!({ "error": text }))).into_response();
    let body = match body {
        Ok(body) => body,
        Err(e) => return failure(e.status(), e.body_text()),
    };
    match service.workers.answer(body).await {
        Some(Ok(answer)) => ([(CONTENT_TYPE, "application/json")], answer).into_response(),
        Some(Err(e)) => failure(status(&e), e.to_string()),
        None => failure(StatusCode::SERVICE_UNAVAILABLE, "too many requests wait; try again later".into()),
    }
}

/// Whose fault an error is: the client's, unless the server is out of memory or has a fault.
fn status(e: &Error) -> StatusCode {
    match e.kind() {
        ErrorKind::OutOfMemory | ErrorKind::Panic | ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// Serves until `shutdown` is done. Then no connection is accepted, and requests that have arrived are answered, for
/// `timeout` at most.
///
/// # Errors
/// Those of the system.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
    timeout: Duration,
) -> io::Result<()> {
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async {
        shutdown.await;
        // The receiver is dropped when the last request is answered.
        _ = end.send(());
    };
    let is_late = async {
        // Without a sender, the server ends by itself.
        if ended.await.is_ok() {
            sleep(timeout).await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        served = axum::serve(listener, router).with_graceful_shutdown(shutdown).into_future() => served,
        () = is_late => Ok(()),
    }
}
