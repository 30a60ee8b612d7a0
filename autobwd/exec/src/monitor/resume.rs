//! Logs that a resumed run goes on with.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use autobwd_core::{__private::warn, Error, ErrorKind, Program, Result};
use serde::Deserialize;
use serde_json::Value;

use super::{Monitor, Watched, header};

/// The longest line of a log that is read, in bytes.
const LINE: u64 = 1 << 26;

/// What is read of the record of a step.
#[derive(Clone, Copy, Deserialize)]
struct LoggedStep {
    step: u64,
    time_s: f64,
}

/// The records that are kept.
struct KeptRecords {
    /// The end of the last one in the file, or of the header; 0 without a whole header.
    end: u64,
    last: Option<LoggedStep>,
    /// The version of the arithmetic in the header.
    arithmetic: Option<u32>,
}

impl Monitor<File> {
    /// A monitor that goes on with the log of a run which is resumed after that many steps,
    /// [`Checkpoint::step`](crate::Checkpoint::step). Records of later steps, which the interrupted run has made and the
    /// resumed run repeats, are removed, and so is a last line without its end; `u64::MAX` keeps all whole lines. Times
    /// go on from the last record. Without a file, or without its whole first line, it is a new log. A log of another
    /// version of the arithmetic goes on, with a [warning](Monitor::warning).
    ///
    /// ```
    /// use autobwd::exec::Monitor;
    /// # use autobwd::{Builder, DType, Executor, Scope};
    /// # use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
    /// # let net = Builder::new();
    /// # let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// # let loss = w.square().mean();
    /// # Sgd { rate: 0.5 }.minimize(&loss)?.complete()?;
    /// # let (mut executor, mut scope) = (Executor::new(), Scope::new());
    /// # executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    /// # let (program, folder) = (net.program()?, tempfile::tempdir()?);
    /// # let path = folder.path().join("run.jsonl");
    /// let mut log = Monitor::create(&path, &program, &[&loss.name()])?;
    /// for step in 1..=3 {
    ///     log.record_fetched(step, &executor.run(&program, &mut scope, &[], &log.fetches())?)?;
    /// }
    /// // Another process loads a checkpoint of step 2.
    /// let mut log = Monitor::resume(&path, &program, &[&loss.name()], 2)?;
    /// assert_eq!(log.last_step(), Some(2));
    /// log.record_fetched(3, &executor.run(&program, &mut scope, &[], &log.fetches())?)?;
    /// assert_eq!(std::fs::read_to_string(&path)?.lines().count(), 1 + 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`new`](Monitor::new), and of the file system, with the path; a log of other variables; a line
    /// that is no record, or has more than 64 MiB. The file is then as it was.
    pub fn resume(
        path: impl AsRef<Path>,
        program: &impl AsRef<Program>,
        values: &[&str],
        step: u64,
    ) -> Result<Monitor<File>> {
        let (path, program) = (path.as_ref(), program.as_ref());
        let watched = Watched::of(program, values)?;
        let fault = |e: io::Error| {
            let text = format!("cannot go on with the log `{}`: {e}", path.display());
            Error::new(ErrorKind::Io, text).caused_by(e)
        };
        let open = || {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
            if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
        };
        let mut file = open().map_err(fault)?;
        let refuse = |text: String| Error::new(ErrorKind::Format, format!("`{}`: {text}", path.display()));
        let header = header(&watched, program)?;
        let KeptRecords { end, last, arithmetic } =
            records(&file, &header, step).map_err(fault)?.map_err(refuse)?;
        file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(fault)?;
        if end == 0 {
            return Monitor::begin(file, program, watched);
        }
        let mut monitor = Monitor { arithmetic, ..Monitor::over(file, watched) };
        if let Some(last) = last {
            (monitor.last_step, monitor.earlier) = (Some(last.step), last.time_s);
        }
        warn!(monitor.warning());
        Ok(monitor)
    }
}

/// Reads a log up to the record of a step.
fn records(file: &File, header: &[u8], step: u64) -> io::Result<Result<KeptRecords, String>> {
    let (mut reader, mut line, mut number) = (BufReader::new(file), vec![], 1);
    let mut next = |line: &mut Vec<u8>| {
        line.clear();
        reader.by_ref().take(LINE).read_until(b'\n', line).map(|count| (count as u64, line.ends_with(b"\n")))
    };
    let (_, is_whole) = next(&mut line)?;
    if !is_whole && header.starts_with(&line) {
        return Ok(Ok(KeptRecords { end: 0, last: None, arithmetic: None }));
    }
    let (found, arithmetic) = without_arithmetic(&line);
    if found.is_none() || found != without_arithmetic(header).0 {
        let text = "not a log of the same variables: a resumed run records what the run before it did";
        return Ok(Err(text.into()));
    }
    let mut kept = KeptRecords { end: line.len() as u64, last: None, arithmetic };
    loop {
        let (count, is_whole) = next(&mut line)?;
        number += 1;
        if count == LINE && !is_whole {
            return Ok(Err(format!(
                "line {number} has more than {LINE} bytes, and is not the record of a step"
            )));
        }
        if !is_whole {
            return Ok(Ok(kept));
        }
        match serde_json::from_slice::<LoggedStep>(&line) {
            Ok(record) if record.step > step => return Ok(Ok(kept)),
            Ok(record) => kept = KeptRecords { end: kept.end + count, last: Some(record), ..kept },
            Err(e) => return Ok(Err(format!("line {number} is not the record of a step: {e}"))),
        }
    }
}

/// A header without its version of the arithmetic, and the version; `None` if the line is no header.
fn without_arithmetic(line: &[u8]) -> (Option<Value>, Option<u32>) {
    let mut header: Option<Value> = serde_json::from_slice(line).ok();
    let version = header.as_mut().and_then(Value::as_object_mut).and_then(|keys| keys.remove("arithmetic"));
    (header, version.as_ref().and_then(Value::as_u64).and_then(|version| version.try_into().ok()))
}
