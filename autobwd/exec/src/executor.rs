//! The executor: plans programs, runs them, and caches sessions.

use std::{any::Any, collections::VecDeque, fmt, num::NonZero, sync::Arc, thread};

use crate::{
    Feed, Scope, Session,
    anomaly::FiniteCheck,
    observer::{Observer, Observers},
    scope::BoundScope,
};
use autobwd_core::{
    __private::{internals::*, span},
    Cx, Meta, OpInfoMap, Program, Result, Tensor, Transport,
    verify::require_valid,
};
use autobwd_plan::{Plan, PlanReport, PlanRequest, cut};

/// Default number of sessions that [`Executor::run`] caches.
const SESSIONS: usize = 16;

/// Default maximum number of steps of a loop in a program from a file.
const LOADED_LOOP_LIMIT: u64 = 1_000_000;

/// Runs programs.
///
/// [`run`](Executor::run) takes feeds and returns fetches; it caches the plans of the most recent shapes.
/// [`prepare`](Executor::prepare) returns the plan as a [`Session`], for loops in which every microsecond counts.
pub struct Executor {
    cx: Arc<Cx>,
    ops: Option<Arc<OpInfoMap>>,
    check_finite: bool,
    observer: Option<Arc<dyn Observer>>,
    loop_limit: Option<u64>,
    /// Maximum number of cached sessions.
    cache_size: usize,
    /// Cached sessions, most recently used first.
    sessions: VecDeque<(SessionKey, Session)>,
    /// Caller's data, kept with the executor.
    attached: Option<Box<dyn Any + Send>>,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Executor");
        text.field("threads", &self.threads()).field("check_finite", &self.check_finite);
        text.field("loop_limit", &self.loop_limit)
            .field("sessions", &self.sessions.len())
            .finish_non_exhaustive()
    }
}

#[derive(PartialEq)]
struct SessionKey {
    program: u64,
    scope: u64,
    feeds: Vec<(String, Meta)>,
    fetches: Vec<String>,
}

impl SessionKey {
    fn is(
        &self,
        program: &Program,
        scope: &Scope,
        feeds: &[(&str, &dyn Feed)],
        fetches: &[impl AsRef<str>],
    ) -> bool {
        let same_feed = |((name, meta), (n, fed)): (&(String, Meta), &(&str, &dyn Feed))| {
            name == n && *meta == fed.meta()
        };
        self.program == program.stamp()
            && self.scope == scope.stamp()
            && self.feeds.len() == feeds.len()
            && self.feeds.iter().zip(feeds).all(same_feed)
            && self.fetches.iter().map(String::as_str).eq(fetches.iter().map(AsRef::as_ref))
    }
}

impl Default for Executor {
    fn default() -> Executor {
        Executor::new()
    }
}

impl Executor {
    /// An executor with as many threads as there are cores.
    pub fn new() -> Executor {
        Executor::with_threads(thread::available_parallelism().map_or(1, NonZero::get))
    }

    /// An executor with that many threads, including the caller's, at most 1,024. Results do not depend on the number.
    pub fn with_threads(threads: usize) -> Executor {
        Executor::of_cx(Arc::new(Cx::new(threads.max(1))))
    }

    /// An executor that shares the threads of another.
    #[doc(hidden)]
    pub fn of_cx(cx: Arc<Cx>) -> Executor {
        Executor {
            cx,
            ops: None,
            check_finite: false,
            observer: None,
            loop_limit: None,
            cache_size: SESSIONS,
            sessions: VecDeque::new(),
            attached: None,
        }
    }

    /// Uses these operators instead of those linked into this binary.
    #[must_use]
    pub fn with_ops(self, ops: OpInfoMap) -> Executor {
        Executor { ops: Some(Arc::new(ops)), sessions: VecDeque::new(), attached: None, ..self }
    }

    /// Runs as one of several ranks: collective operators exchange data by this transport.
    #[must_use]
    pub fn with_transport(self, transport: Arc<dyn Transport>) -> Executor {
        let cx = Cx::new(self.threads()).with_transport(transport);
        Executor { cx: Arc::new(cx), sessions: VecDeque::new(), attached: None, ..self }
    }

    /// Checks for NaN and infinities after every operator (anomaly detection): the first operator that writes one fails
    /// the run, before its results reach the scope. The error names the operator and its source line, for a gradient
    /// operator also the forward operator, and the value ranges of inputs and outputs.
    ///
    /// Operators are then neither fused nor run in place: results are equal bit by bit, but take more time and memory.
    ///
    /// ```
    /// # use autobwd::{Builder, DType, Scope, Tensor};
    /// # use autobwd_ops::Math;
    /// use autobwd::Executor;
    ///
    /// let net = Builder::new();
    /// let y = net.input("x", DType::F32, &[3]).log().exp();
    /// let x = Tensor::from_vec([3], vec![2.0_f32, 0.5, -1.0])?;
    /// let outcome =
    ///     Executor::new().check_finite(true).run(&net.program()?, &mut Scope::new(), &[("x", &x)], &[&y.name()]);
    /// let text = outcome.unwrap_err().to_string();
    /// let lines: Vec<_> = text.lines().collect();
    /// assert!(lines[0].starts_with("operator `log` (block 0, operator 0, added at "));
    /// assert!(lines[0].ends_with("; X = `x`, Out = `log_0`): `log_0` is not finite"));
    /// assert_eq!(lines[1], "  reads X = `x`: float32 [3], from -1.0 to 2.0");
    /// assert_eq!(lines[2], "  writes Out = `log_0`: float32 [3], from -0.6931472 to 0.6931472, 1 NaN");
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[must_use]
    pub fn check_finite(self, on: bool) -> Executor {
        Executor { check_finite: on, sessions: VecDeque::new(), attached: None, ..self }
    }

    /// An executor with the threads and options of this one that calls an observer around every operator, also in each
    /// iteration of a loop. Operators are then neither fused nor run in place, as with
    /// [`check_finite`](Executor::check_finite): results are equal bit by bit. Constants are observed when a program is
    /// planned. [`Observer`] has an example.
    #[must_use]
    pub fn observed(&self, observer: Arc<dyn Observer>) -> Executor {
        Executor {
            ops: self.ops.clone(),
            check_finite: self.check_finite,
            observer: Some(observer),
            loop_limit: self.loop_limit,
            cache_size: self.cache_size,
            ..Executor::of_cx(self.cx.clone())
        }
    }

    /// The observers of the sessions.
    fn observers(&self) -> Observers {
        let check = self.check_finite.then(|| Arc::new(FiniteCheck) as Arc<dyn Observer>);
        self.observer.iter().cloned().chain(check).collect()
    }

    /// Limits the number of steps of every loop; a loop that exceeds the limit fails the run. By default, loops of
    /// programs read from a file ([`Program::load`], [`Program::from_json`]) end after a million steps, all others
    /// never.
    ///
    /// ```
    /// # use autobwd::{Builder, DType, Executor, Scope};
    /// # use autobwd_ops::{Init, Math, control::while_loop};
    /// let net = Builder::new();
    /// let x = net.input("x", DType::F32, &[]);
    /// let last = while_loop(&[x], |v| v[0].less_than(&(&v[0] + 1.0)), |v| vec![v[0].tanh()]);
    /// let x = autobwd::Tensor::scalar(1.0_f32)?;
    /// let mut executor = Executor::new().loop_limit(1000);
    /// let e = executor.run(&net.program()?, &mut Scope::new(), &[("x", &x)], &[&last[0].name()]).unwrap_err();
    /// assert!(e.to_string().contains("operator `while` (block 0, operator"), "{e}");
    /// assert!(e.to_string().contains("the loop has not ended after 1000 steps, its limit"), "{e}");
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[must_use]
    pub fn loop_limit(self, steps: u64) -> Executor {
        Executor { loop_limit: Some(steps), sessions: VecDeque::new(), attached: None, ..self }
    }

    /// Sets the number of plans that [`run`](Executor::run) keeps with their memory, at least one: 16 by default. The
    /// most recently used ones are kept. Batches of more different shapes than this are planned again and again.
    #[must_use]
    pub fn cache_size(mut self, plans: usize) -> Executor {
        self.cache_size = plans.max(1);
        self.sessions.truncate(self.cache_size);
        self
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.cx.threads()
    }

    /// An executor with that many threads, which caches as many sessions as this one.
    pub(crate) fn with_other_threads(&self, threads: usize) -> Executor {
        Executor::with_threads(threads).cache_size(self.cache_size)
    }

    /// Plans a program for data of these dtypes and shapes, and for these fetches. Only operators run that the fetches
    /// need or that write values of the scope. Values that the program writes to the scope for the first time get their
    /// memory there.
    ///
    /// # Errors
    /// A program that [`verify`](autobwd_core::verify()) rejects; feeds that do not fit the program; unknown names;
    /// values missing in the scope; wrong shapes: each with operator, variables and source line.
    pub fn prepare(
        &self,
        program: &impl AsRef<Program>,
        scope: &mut Scope,
        feeds: &[(&str, Meta)],
        fetches: &[&str],
    ) -> Result<Session> {
        self.prepare_on(program.as_ref(), &mut BoundScope::Exclusive(scope), feeds, fetches)
    }

    fn prepare_on(
        &self,
        program: &Program,
        scope: &mut BoundScope<'_>,
        feeds: &[(&str, Meta)],
        fetches: &[&str],
    ) -> Result<Session> {
        span!("prepare", feeds = feeds.len(), fetches = fetches.len());
        let ops = self.operators()?;
        require_valid(ops, program)?;
        let loop_limit = self.loop_limit.or(program.is_loaded().then_some(LOADED_LOOP_LIMIT));
        let (observers, known) = (self.observers(), scope.scope().len());
        let (program, options) = (&*cut(program, feeds)?, (&observers, loop_limit));
        let session = Session::new(program, ops, scope, feeds, fetches, options, self.cx.clone());
        if session.is_err() {
            scope.truncate(known);
        }
        session
    }

    /// The plan that [`prepare`](Executor::prepare) would make, as a report: fused operators, lifetimes and locations
    /// of values. It allocates no tensor memory.
    ///
    /// ```
    /// # use autobwd::{Builder, DType, Executor, Meta, Scope};
    /// # use autobwd_ops::Math;
    /// let net = Builder::new();
    /// let mean = net.input("x", DType::F32, &[-1, 3]).tanh().square().mean();
    /// let feeds = [("x", Meta::new(DType::F32, [100, 3]))];
    /// let plan = Executor::new().plan(&net.program()?, &Scope::new(), &feeds, &[&mean.name()])?;
    /// assert_eq!(plan.instructions().len(), 1);
    /// assert_eq!(plan.instructions()[0].operators, ["tanh", "square", "mean"]);
    /// assert_eq!(plan.arena_bytes(), 1216 + 64); // `x` and the mean, in whole cache lines
    /// println!("{plan}"); // a table
    /// let picture = plan.to_svg(); // buffers over time
    /// # assert!(picture.starts_with("<svg"));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`prepare`](Executor::prepare).
    pub fn plan(
        &self,
        program: &impl AsRef<Program>,
        scope: &Scope,
        feeds: &[(&str, Meta)],
        fetches: &[&str],
    ) -> Result<PlanReport> {
        let program = program.as_ref();
        let ops = self.operators()?;
        require_valid(ops, program)?;
        let program = &*cut(program, feeds)?;
        let kept = |name: &str| scope.meta(name);
        let request = PlanRequest::new(feeds, &kept, fetches, !self.observers().is_empty());
        Ok(PlanReport::new(program, &Plan::new(program, ops, &request)?))
    }

    /// Takes the attached data; `None` if it has another type or options have changed.
    #[doc(hidden)]
    pub fn take_attached<T: Any + Default>(&mut self) -> T {
        let attached = self.attached.take().and_then(|attached| attached.downcast().ok());
        attached.map_or_else(T::default, |attached| *attached)
    }

    /// Attaches data for [`take_attached`](Executor::take_attached).
    #[doc(hidden)]
    pub fn attach<T: Any + Send>(&mut self, value: T) {
        self.attached = Some(Box::new(value));
    }

    #[doc(hidden)]
    pub fn operators(&self) -> Result<&OpInfoMap> {
        match &self.ops {
            Some(ops) => Ok(ops),
            None => OpInfoMap::linked(),
        }
    }

    /// Runs a program once and returns the fetches. Feeds are tensors, arrays and views: [`Feed`]. A failed run leaves
    /// the scope as it was.
    ///
    /// A variable that the program computes may be fed, too: the program is cut there. The feed replaces the operator's
    /// output, and operators that become dead do not run, so their inputs need not be fed. A variable that is read
    /// before an operator writes it starts with the fed value.
    ///
    /// ```
    /// # use autobwd::{Builder, DType, Executor, Scope, Tensor};
    /// # use autobwd_ops::Math;
    /// let net = Builder::new();
    /// let code = net.input("x", DType::F32, &[]).square();
    /// let decoded = &code + 1.0;
    /// let given = Tensor::scalar(100.0_f32)?;
    /// let (program, mut scope) = (net.program()?, Scope::new());
    /// let found = Executor::new().run(&program, &mut scope, &[(&code.name(), &given)], &[&decoded.name()])?;
    /// assert_eq!(found[0].item()?, 101.0);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`prepare`](Executor::prepare) and [`Session::run`]. A fed variable that several operators write,
    /// or that is in a sub-block: it would not keep the fed value.
    pub fn run(
        &mut self,
        program: &impl AsRef<Program>,
        scope: &mut Scope,
        feeds: &[(&str, &dyn Feed)],
        fetches: &[&str],
    ) -> Result<Vec<Tensor>> {
        let program = program.as_ref();
        let known = scope.len();
        let session = self.session(program, BoundScope::Exclusive(&mut *scope), feeds, fetches)?;
        let fed = feeds.iter().try_for_each(|(name, fed)| session.feed(name, *fed));
        let outcome = fed.and_then(|()| session.run(scope));
        if outcome.is_ok() {
            return (0..fetches.len()).map(|k| session.fetch_at(k)).collect();
        }
        if scope.len() > known {
            // Values that this run would have written first do not exist either.
            self.sessions.pop_front();
            scope.truncate(known);
        }
        outcome.map(|()| vec![])
    }

    pub(crate) fn session(
        &mut self,
        program: &Program,
        mut scope: BoundScope<'_>,
        feeds: &[(&str, &dyn Feed)],
        fetches: &[impl AsRef<str>],
    ) -> Result<&mut Session> {
        let known = self.sessions.iter().position(|(key, _)| key.is(program, scope.scope(), feeds, fetches));
        let entry = match known.and_then(|i| self.sessions.remove(i)) {
            Some(entry) => entry,
            None => {
                let metas: Vec<_> = feeds.iter().map(|(name, fed)| (*name, fed.meta())).collect();
                let fetches: Vec<&str> = fetches.iter().map(AsRef::as_ref).collect();
                let session = self.prepare_on(program, &mut scope, &metas, &fetches)?;
                let key = SessionKey {
                    program: program.stamp(),
                    scope: scope.scope().stamp(),
                    feeds: metas.into_iter().map(|(name, meta)| (name.to_string(), meta)).collect(),
                    fetches: fetches.iter().map(ToString::to_string).collect(),
                };
                (key, session)
            }
        };
        self.sessions.truncate(self.cache_size - 1);
        self.sessions.push_front(entry);
        Ok(&mut self.sessions[0].1)
    }
}
