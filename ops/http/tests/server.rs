//! The server as a process: requests, errors, batches and its end.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use autobwd::{Builder, DType, Executor, Feed, Scope, Tensor};
use autobwd_ops::{
    Math, Model,
    nn::{Embedding, Linear},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A server that ends with the test.
struct Server {
    process: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

impl Server {
    /// Serves the model in a folder, on a free port.
    fn start(folder: TempDir, options: &[&str]) -> Server {
        let mut process = Command::new(env!("CARGO_BIN_EXE_autobwd-http"))
            .args(["--listen", "127.0.0.1:0"])
            .args(options)
            .args(["model.json", "model.safetensors"].map(|file| folder.path().join(file)))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap().parse().unwrap();
        Server { process, address, folder }
    }

    /// Status and body of the answer to a request.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // The server may refuse the request before it has read all of it.
        _ = stream.write_all(body.as_bytes());
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.into())
    }

    fn predict(&self, request: &Value) -> Value {
        let (status, body) = self.ask("POST", "/predict", &request.to_string());
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Status and message of a request that is refused.
    fn refusal(&self, body: &str) -> (u16, String) {
        let (status, body) = self.ask("POST", "/predict", body);
        let answer: Value = serde_json::from_str(&body).unwrap();
        (status, answer["error"].as_str().unwrap().into())
    }
}

/// Saves a model with an input of numbers and one of classes; returns its folder.
fn saved_model() -> TempDir {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 3]);
    let class = net.input("class", DType::I64, &[-1]);
    let hidden = Linear::builder(&net, 3, 4).seed(1).build().forward(&x);
    let scores = (hidden + Embedding::builder(&net, 5, 4).seed(2).build().forward(&class)).log();
    net.set_signature(&[("features", &x), ("class", &class)], &[("scores", &scores)]).unwrap();
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program().unwrap(), &mut scope, &[], &[]).unwrap();
    // With positive weights, the logarithm of small inputs alone is not finite.
    for name in ["linear_0.w", "embedding_0.w"] {
        scope.slice_mut::<f32>(name).unwrap().iter_mut().for_each(|x| *x = x.abs() + 0.1);
    }
    let folder = tempfile::tempdir().unwrap();
    net.program().unwrap().save(folder.path().join("model.json")).unwrap();
    scope.save(folder.path().join("model.safetensors")).unwrap();
    folder
}

/// What the model answers in this process.
fn expected(folder: &Path, features: &[[f32; 3]], classes: &[i64]) -> Vec<f32> {
    let program = autobwd::Program::load(folder.join("model.json")).unwrap();
    let mut scope = Scope::new();
    scope.load(folder.join("model.safetensors")).unwrap();
    let x = Tensor::from_vec([features.len(), 3], features.concat()).unwrap();
    let classes = Tensor::from_vec([classes.len()], classes.to_vec()).unwrap();
    let mut model = Model::with_signature(program, scope).unwrap();
    let found = model.run_named(&mut Executor::new(), &[("features", &x), ("class", &classes)]).unwrap();
    assert_eq!(Feed::meta(&found[0].1).dims.len(), 2);
    found[0].1.slice::<f32>().unwrap().to_vec()
}

/// The numbers of nested lists.
fn numbers(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        number => vec![number.to_string().parse().unwrap()],
    }
}

#[test]
fn answers_have_the_bits_of_the_model() {
    let server = Server::start(saved_model(), &[]);
    let (features, classes) = ([[0.5, 1.0, 0.1], [2.0, 3.0, 0.7]], [4, 0]);
    let answer = server.predict(&json!({ "features": features, "class": classes }));
    assert_eq!(numbers(&answer["scores"]), expected(server.folder.path(), &features, &classes));
    assert_eq!(answer["scores"].as_array().unwrap().len(), 2);

    assert_eq!(server.ask("GET", "/health", ""), (200, r#"{"status":"ok"}"#.into()));
    let (status, model) = server.ask("GET", "/model", "");
    let described = json!({
        "inputs": [
            { "name": "features", "dtype": "float32", "shape": [null, 3] },
            { "name": "class", "dtype": "int64", "shape": [null] },
        ],
        "outputs": ["scores"],
    });
    assert_eq!((status, serde_json::from_str::<Value>(&model).unwrap()), (200, described));
    assert!(server.ask("GET", "/", "").1.starts_with("<!doctype html>"));
    assert_eq!(server.ask("GET", "/predict", "").0, 405);
    assert_eq!(server.ask("GET", "/missing", "").0, 404);
}

#[test]
fn bad_requests_are_refused_with_the_message_of_the_framework() {
    let server = Server::start(saved_model(), &["--workers", "1"]);
    let cases = [
        ("{", "the request is no JSON: EOF while parsing an object at line 1 column 1"),
        ("[1]", "the request needs a JSON object with `features`, `class`"),
        (r#"{"features": [[1, 2, 3]]}"#, "the request needs the input `class`"),
        (
            r#"{"features": [[1, 2, 3]], "class": [0], "x": 1}"#,
            "the model has no input `x`; its inputs are `features`, `class`",
        ),
        (r#"{"features": [[1, 2], [3]], "class": [0]}"#, "`features` needs lists of equal lengths"),
        (r#"{"features": [["1"]], "class": [0]}"#, "`features` needs lists of float32"),
        (
            r#"{"features": [[1, 2, 1e39]], "class": [0]}"#,
            "`features` needs numbers of float32, not 1000000000000000000000000000000000000000",
        ),
        (
            r#"{"features": [[1, 2]], "class": [0]}"#,
            "`x` cannot be fed: the program declares shape [x.0, 3], but the tensor has shape [1, 2]",
        ),
        (
            r#"{"features": [[1, 2, 3]], "class": [0.5]}"#,
            "`class` cannot be fed: the program declares int64, but the tensor is float64",
        ),
        (
            r#"{"features": [[1, 2, 3]], "class": [true]}"#,
            "`class` cannot be fed: the program declares int64, but the tensor is bool",
        ),
        (r#"{"features": [[-9, -9, -9]], "class": [0]}"#, "the output `scores` is not finite"),
    ];
    for (body, message) in cases {
        assert_eq!(server.refusal(body), (400, message.into()), "{body}");
    }
    let (status, message) = server.refusal(r#"{"features": [[1, NaN, 3]], "class": [0]}"#);
    assert!(status == 400 && message.starts_with("the request is no JSON"), "{message}");
    let (status, message) = server.refusal(r#"{"features": [[1, 2, 3]], "class": [5]}"#);
    assert!(status == 400 && message.contains("operator `lookup_table_v2`"), "{message}");
    // The server goes on.
    server.predict(&json!({ "features": [[1, 2, 3]], "class": [0] }));
}

#[test]
fn long_body_is_refused() {
    let server = Server::start(saved_model(), &[]);
    let (status, message) = server.refusal(&" ".repeat((1 << 20) + 1));
    assert_eq!((status, message.contains("limit")), (413, true), "{message}");
}

#[test]
fn slow_request_ends() {
    let server = Server::start(saved_model(), &["--timeout", "1"]);
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 408"), "{line}");
}

#[test]
fn requests_in_one_batch_get_their_own_answers() {
    let server = Server::start(saved_model(), &["--workers", "1", "--batch", "8"]);
    thread::scope(|scope| {
        for client in 0..8 {
            let server = &server;
            scope.spawn(move || {
                for i in 0..50 {
                    let features = vec![[i as f32, client as f32, 1.0]; 1 + i % 3];
                    let classes = vec![client; 1 + i % 3];
                    match i % 5 {
                        // Of a batch with others, it alone is refused.
                        4 => {
                            let bad = json!({ "features": features, "class": vec![7; classes.len()] });
                            assert_eq!(server.refusal(&bad.to_string()).0, 400);
                        }
                        _ => {
                            let classes: Vec<i64> = classes.iter().map(|class| class % 5).collect();
                            let answer = server.predict(&json!({ "features": features, "class": classes }));
                            let expected = expected(server.folder.path(), &features, &classes);
                            assert_eq!(numbers(&answer["scores"]), expected);
                        }
                    }
                }
            });
        }
    });
}

#[cfg(unix)]
#[test]
fn signal_ends_the_server_after_the_requests_that_have_arrived() {
    let mut server = Server::start(saved_model(), &[]);
    let body = json!({ "features": [[1, 2, 3]], "class": [0] }).to_string();
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = format!("POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    // The server has read the head of the request when it answers another one.
    assert_eq!(server.ask("GET", "/health", "").0, 200);
    let killed = Command::new("kill").args(["-TERM", &server.process.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let is_closed = |_| {
        thread::sleep(Duration::from_millis(10));
        TcpStream::connect(server.address).is_err()
    };
    assert!((0..500).any(is_closed), "connections are accepted after the signal");
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(server.process.wait().unwrap().success());
}

#[test]
fn program_without_signature_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let net = Builder::new();
    net.input("x", DType::F32, &[-1, 3]).relu();
    net.program().unwrap().save(folder.path().join("model.json")).unwrap();
    Scope::new().save(folder.path().join("model.safetensors")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_autobwd-http"))
        .args(["model.json", "model.safetensors"].map(|file| folder.path().join(file)))
        .output()
        .unwrap();
    assert!(!output.status.success());
    let message =
        "autobwd-http: an inference model needs outputs: name them, or set the program's signature\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), message);
}
