//! The monitor: a log of a training run, one JSON line a step.

mod eager;
mod event_file;
mod resume;

use std::{fmt, fs::File, io::Write, path::Path, time::Instant};

use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};

use self::event_file::EventFile;
use crate::{Session, arithmetic, norm::l2_norm, optimizer_state::RATE_SLOT};
use autobwd_core::{
    __private::internals::*,
    ARITHMETIC_VERSION, Error, ErrorKind, Meta, Op, OpDesc, Program, Result, Tensor, Var,
    operators::{Cast, Reshape2},
    with_dtype,
};

/// The schema of a log. A new version removes a key or changes its meaning; keys may be added to this one.
const SCHEMA: &str = "autobwd.log/1";

/// The operators that make a learning rate fit a parameter, in dtype and rank.
const CONVERSIONS: [&str; 2] = [Cast::<Var>::SCHEMA.name, Reshape2::<Var>::SCHEMA.name];

/// Writes a log of a training run: one JSON line a step, with losses and other scalars, learning rates, the norm of
/// every parameter's gradient, time and memory.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, exec::Monitor};
/// use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
///
/// let net = Builder::new();
/// let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
/// let loss = w.square().mean();
/// Sgd { rate: 0.5 }.minimize(&loss)?.complete()?;
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
///
/// let mut log = vec![]; // or `Monitor::create("run.jsonl", …)`
/// let mut monitor = Monitor::new(&mut log, &net.program()?, &[&loss.name()])?;
/// let mut session = executor.prepare(&net.program()?, &mut scope, &[], &monitor.fetches())?;
/// for step in 1..=3 {
///     session.run(&mut scope)?;
///     monitor.record(step, &session)?;
/// }
///
/// let log = String::from_utf8_lossy(&log);
/// let lines: Vec<&str> = log.lines().collect();
/// assert_eq!(
///     lines[0],
///     r#"{"schema":"autobwd.log/1","values":["mean_0"],"learning_rates":["learning_rate_0"],"parameters":[{"name":"w","gradient":"w@GRAD"}],"arithmetic":2}"#
/// );
/// assert!(lines[1].starts_with(r#"{"step":1,"time_s":"#));
/// assert!(lines[1].contains(r#""values":{"mean_0":9.0},"learning_rates":{"learning_rate_0":0.5},"gradient_norms":{"w":4.24"#));
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # What is recorded
///
/// - The named variables of one element, such as the loss. The mean of a larger one, or its norm, is an operator of the
///   model.
/// - Learning rates: the variables that operators of the outermost block read in their slot `LearningRate`, as updates
///   of all optimizers of `autobwd_ops` do, before these rates are converted to the dtype and the rank of a parameter.
///   Name the rate of another optimizer among the values.
/// - The Euclidean norm of the gradient of every parameter, `w@GRAD` for `w`, computed in float64. Parameters without
///   gradient are in the header, with `null`.
/// - `time_s`: seconds since the monitor was made. The time between two records contains all that the loop does.
/// - `peak_bytes`: [`Session::peak_bytes`]; [`record_fetched`](Monitor::record_fetched) does not know it.
///
/// All numbers are those after the step. NaN and infinities are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.
///
/// # Costs
///
/// Gradients that are fetched live until the end of a step, and are neither fused with updates nor overwritten by them:
/// a step takes more memory, and one pass over all gradients more. Each line is one write, so the log of a killed run
/// has whole lines, except perhaps for the last one.
///
/// [`with_events`](Monitor::with_events) also writes event files, which TensorBoard reads.
///
/// A run that is resumed goes on with its log by [`resume`](Monitor::resume); in eager mode, [`eager`](Monitor::eager)
/// makes a monitor.
pub struct Monitor<W> {
    log: W,
    watched: Watched,
    start: Instant,
    /// Seconds of the runs before this one in the same log.
    earlier: f64,
    last_step: Option<u64>,
    /// The version of the arithmetic in the first line of the log.
    arithmetic: Option<u32>,
    /// Whether the log has its first line.
    has_header: bool,
    /// Whether a write failed: the log may end within a line then.
    is_broken: bool,
    events: Option<EventFile>,
}

impl<W> fmt::Debug for Monitor<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Monitor");
        text.field("watched", &self.watched).field("last_step", &self.last_step).finish_non_exhaustive()
    }
}

/// The variables that a monitor records.
#[derive(Debug, PartialEq)]
struct Watched {
    values: Vec<String>,
    learning_rates: Vec<String>,
    /// Parameters with their gradients.
    gradients: Vec<(String, String)>,
}

impl Watched {
    fn of(program: &Program, names: &[&str]) -> Result<Watched> {
        let root = program.root();
        let mut values: Vec<String> = vec![];
        for name in names {
            let desc = root.vars.get(&program.expect_var(name)?);
            if let Some(desc) = desc.filter(|desc| desc.dims.numel().get().is_some_and(|n| n != 1)) {
                return Err(not_a_scalar(name, &desc.meta()));
            }
            if !values.iter().any(|known| known == name) {
                values.push(name.to_string());
            }
        }
        let conversions = root.ops.iter().filter(|op| CONVERSIONS.contains(&&*op.ty));
        let conversions: FxHashMap<Var, &OpDesc> =
            conversions.flat_map(|op| op.writes().map(move |var| (var, op))).collect();
        let converted = |var: Var| conversions.get(&var).and_then(|op| op.inputs.get("X").first().copied());
        let mut learning_rates: Vec<String> = vec![];
        for var in root.ops.iter().flat_map(|op| op.inputs.get(RATE_SLOT)) {
            let rate = CONVERSIONS.iter().fold(*var, |var, _| converted(var).unwrap_or(var));
            let name = program.name(rate);
            if !values.iter().chain(&learning_rates).any(|known| known == name) {
                learning_rates.push(name.into());
            }
        }
        let gradient = |var: Var| {
            let gradient = program.gradient_name(var).filter(|gradient| root.vars.contains_key(gradient))?;
            Some((program.name(var).to_string(), program.name(gradient).to_string()))
        };
        Ok(Watched { values, learning_rates, gradients: program.parameters().filter_map(gradient).collect() })
    }

    fn fetches(&self) -> impl Iterator<Item = &str> {
        let gradients = self.gradients.iter().map(|(_, gradient)| gradient);
        self.values.iter().chain(&self.learning_rates).chain(gradients).map(String::as_str)
    }
}

#[derive(Serialize)]
struct LogHeader<'a> {
    schema: &'static str,
    values: &'a [String],
    learning_rates: &'a [String],
    parameters: Vec<LoggedParameter<'a>>,
    arithmetic: u32,
}

#[derive(Serialize)]
struct LoggedParameter<'a> {
    name: &'a str,
    gradient: Option<&'a str>,
}

#[derive(Serialize)]
struct LogRecord {
    step: u64,
    time_s: f64,
    values: Numbers,
    learning_rates: Numbers,
    gradient_norms: Numbers,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bytes: Option<usize>,
}

/// Numbers by name, as a JSON object in this order.
struct Numbers(Vec<(String, f64)>);

impl Numbers {
    /// The numbers by tags of a group.
    fn tagged<'a>(&'a self, group: &'a str) -> impl Iterator<Item = (String, f64)> + 'a {
        self.0.iter().map(move |(name, x)| (format!("{group}/{name}"), *x))
    }
}

impl Serialize for Numbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, x)| (name, LogNumber(*x))))
    }
}

/// A number; JSON has no NaN and no infinities, so they are strings.
struct LogNumber(f64);

impl Serialize for LogNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            x if x.is_finite() => serializer.serialize_f64(x),
            x if x.is_nan() => serializer.serialize_str("NaN"),
            x if x > 0.0 => serializer.serialize_str("Infinity"),
            _ => serializer.serialize_str("-Infinity"),
        }
    }
}

impl Monitor<File> {
    /// A monitor that writes a file; an existing file is replaced.
    ///
    /// # Errors
    /// The errors of [`new`](Monitor::new), and of the file system, with the path.
    pub fn create(
        path: impl AsRef<Path>,
        program: &impl AsRef<Program>,
        values: &[&str],
    ) -> Result<Monitor<File>> {
        let path = path.as_ref();
        let watched = Watched::of(program.as_ref(), values)?;
        let file = File::create(path).map_err(|e| {
            Error::new(ErrorKind::Io, format!("cannot write the log `{}`: {e}", path.display())).caused_by(e)
        })?;
        Monitor::begin(file, program.as_ref(), watched)
    }
}

impl<W: Write> Monitor<W> {
    /// A monitor that writes to `log`, one line a write, each followed by a flush. `values` are names of variables of
    /// one element, such as the loss.
    ///
    /// # Errors
    /// An unknown variable, or one of several elements; a log that cannot be written.
    pub fn new(log: W, program: &impl AsRef<Program>, values: &[&str]) -> Result<Monitor<W>> {
        Monitor::begin(log, program.as_ref(), Watched::of(program.as_ref(), values)?)
    }

    fn begin(log: W, program: &Program, watched: Watched) -> Result<Monitor<W>> {
        let header = header(&watched, program)?;
        let mut monitor = Monitor::over(log, watched);
        monitor.write(&header)?;
        Ok(monitor)
    }

    /// A monitor of a log that has its header.
    fn over(log: W, watched: Watched) -> Monitor<W> {
        let (start, earlier, last_step) = (Instant::now(), 0.0, None);
        let arithmetic = Some(ARITHMETIC_VERSION);
        let (has_header, is_broken, events) = (true, false, None);
        Monitor { log, watched, start, earlier, last_step, arithmetic, has_header, is_broken, events }
    }

    /// Also writes the scalars of each step to an event file in a folder, which TensorBoard reads
    /// (`tensorboard --logdir FOLDER`): the tags are `values/NAME`, `learning_rates/NAME`, `gradient_norms/NAME` and
    /// `peak_bytes`. The folder is made if it is missing; it gets a new file, and keeps the files of earlier runs.
    ///
    /// # Errors
    /// A file that cannot be made.
    pub fn with_events(self, folder: impl AsRef<Path>) -> Result<Monitor<W>> {
        Ok(Monitor { events: Some(EventFile::create(folder.as_ref())?), ..self })
    }

    /// The number of the last step in the log.
    pub fn last_step(&self) -> Option<u64> {
        self.last_step
    }

    /// A sentence for the user if the run that began the log had another
    /// [version of the arithmetic](ARITHMETIC_VERSION): steps that are repeated may differ in their last bits.
    pub fn warning(&self) -> Option<String> {
        arithmetic::warning("the log", self.arithmetic)
    }

    /// The variables that a run must fetch for [`record`](Monitor::record): values, learning rates and gradients.
    pub fn fetches(&self) -> Vec<&str> {
        self.watched.fetches().collect()
    }

    /// Records a step after a session has run it. Steps ascend; not every step need be recorded.
    ///
    /// # Errors
    /// A session without one of the [`fetches`](Monitor::fetches), or that has not run; a value of several elements; a
    /// step that is not after the last one; a log that cannot be written, after which no step is recorded.
    pub fn record(&mut self, step: u64, session: &Session) -> Result<()> {
        let item = |_, name: &str| session.item(name);
        let norm = |_, name: &str| session.norm(name);
        self.append(step, Some(session.peak_bytes()), item, norm)
    }

    /// Records a step by the values that [`Executor::run`](crate::Executor::run) returned for
    /// [`fetches`](Monitor::fetches); further ones may follow them.
    ///
    /// ```
    /// # use autobwd::{Backward, Builder, DType, Executor, Scope, append_backward, exec::Monitor};
    /// # use autobwd_ops::{Init, Math};
    /// # let net = Builder::new();
    /// # let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// # let loss = w.square().mean();
    /// # net.edit(|program| append_backward(program, &loss.name(), &Backward::default()))?;
    /// # let (mut executor, mut scope) = (Executor::new(), Scope::new());
    /// # executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    /// let mut monitor = Monitor::new(std::io::sink(), &net.program()?, &[&loss.name()])?;
    /// for step in 1..=3 {
    ///     let fetched = executor.run(&net.program()?, &mut scope, &[], &monitor.fetches())?;
    ///     monitor.record_fetched(step, &fetched)?;
    /// }
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fewer values than fetches; otherwise as [`record`](Monitor::record).
    pub fn record_fetched(&mut self, step: u64, fetched: &[Tensor]) -> Result<()> {
        let fetches = self.watched.fetches().count();
        if fetched.len() < fetches {
            let text = format!(
                "{} values are given to a monitor of {fetches}: run the program with `Monitor::fetches`",
                fetched.len()
            );
            return Err(Error::new(ErrorKind::Fetch, text));
        }
        let item = |k: usize, name: &str| match fetched[k].meta() {
            meta if meta.dims.numel() == 1 => fetched[k].item(),
            meta => Err(not_a_scalar(name, &meta)),
        };
        let norm = |k: usize, _: &str| {
            let tensor = &fetched[k];
            with_dtype!(tensor.dtype(), T => Ok(l2_norm(tensor.slice::<T>()?)))
        };
        self.append(step, None, item, norm)
    }

    /// Appends the record of a step; `item` and `norm` take the position and the name of a fetch.
    fn append(
        &mut self,
        step: u64,
        peak_bytes: Option<usize>,
        item: impl Fn(usize, &str) -> Result<f64>,
        norm: impl Fn(usize, &str) -> Result<f64>,
    ) -> Result<()> {
        let record = self.record_of(&self.watched, step, peak_bytes, item, norm)?;
        self.write_step(&record)
    }

    /// The record of a step.
    fn record_of(
        &self,
        watched: &Watched,
        step: u64,
        peak_bytes: Option<usize>,
        item: impl Fn(usize, &str) -> Result<f64>,
        norm: impl Fn(usize, &str) -> Result<f64>,
    ) -> Result<LogRecord> {
        if let Some(last) = self.last_step.filter(|last| *last >= step) {
            let text = format!("step {step} cannot be recorded after step {last}: steps ascend");
            return Err(Error::new(ErrorKind::Data, text));
        }
        let Watched { values, learning_rates, gradients } = watched;
        let (rates, norms) = (values.len(), values.len() + learning_rates.len());
        let items = |first: usize, names: &[String]| {
            let item = |(k, name): (usize, &String)| Ok((name.clone(), item(first + k, name)?));
            names.iter().enumerate().map(item).collect::<Result<Vec<_>>>().map(Numbers)
        };
        let gradients = gradients.iter().enumerate();
        let gradient_norms =
            gradients.map(|(k, (parameter, name))| Ok((parameter.clone(), norm(norms + k, name)?)));
        Ok(LogRecord {
            step,
            time_s: self.earlier + self.start.elapsed().as_secs_f64(),
            values: items(0, values)?,
            learning_rates: items(rates, learning_rates)?,
            gradient_norms: Numbers(gradient_norms.collect::<Result<_>>()?),
            peak_bytes,
        })
    }

    fn write_step(&mut self, record: &LogRecord) -> Result<()> {
        self.write(&line(record)?)?;
        self.last_step = Some(record.step);
        let Some(events) = &mut self.events else { return Ok(()) };
        let LogRecord { step, values, learning_rates, gradient_norms, peak_bytes, .. } = record;
        let groups = values.tagged("values").chain(learning_rates.tagged("learning_rates"));
        let memory = peak_bytes.map(|bytes| ("peak_bytes".to_string(), bytes as f64));
        events.scalars(*step, groups.chain(gradient_norms.tagged("gradient_norms")).chain(memory))
    }

    fn write(&mut self, line: &[u8]) -> Result<()> {
        if self.is_broken {
            let text = "the log ended when it could not be written; make another monitor";
            return Err(Error::new(ErrorKind::Io, text));
        }
        self.log.write_all(line).and_then(|()| self.log.flush()).map_err(|e| {
            self.is_broken = true;
            Error::new(ErrorKind::Io, format!("cannot write the log of the run: {e}")).caused_by(e)
        })
    }
}

/// The first line of the log of a program.
fn header(watched: &Watched, program: &Program) -> Result<Vec<u8>> {
    let gradient = |name: &str| watched.gradients.iter().find(|(parameter, _)| parameter == name);
    let parameter = |var: Var| {
        let name = program.name(var);
        LoggedParameter { name, gradient: gradient(name).map(|(_, gradient)| gradient.as_str()) }
    };
    line(&LogHeader {
        schema: SCHEMA,
        values: &watched.values,
        learning_rates: &watched.learning_rates,
        parameters: program.parameters().map(parameter).collect(),
        arithmetic: ARITHMETIC_VERSION,
    })
}

/// A document as a line of JSON.
fn line(document: &impl Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(document).map_err(Error::internal)?;
    line.push(b'\n');
    Ok(line)
}

fn not_a_scalar(name: &str, meta: &Meta) -> Error {
    let text = format!("`{name}` is {meta}; a monitor records variables of one element, such as its mean");
    Error::new(ErrorKind::Shape, text)
}
