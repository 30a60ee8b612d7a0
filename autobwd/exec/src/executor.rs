use std::{any::Any, collections::VecDeque, fmt, num::NonZero, sync::Arc, thread};

use crate::{Feed, Scope, Session};
use autobwd_core::{Cx, Meta, OpInfoMap, Program, Result, Tensor, verify::require_valid};
use autobwd_plan::{Plan, Request, RunPlan, cut};

/// How many sessions [`Executor::run`] keeps.
const SESSIONS: usize = 16;

/// How often a loop of a program from a file may run its body, if nothing else is said.
const LOADED_LOOP_LIMIT: u64 = 1_000_000;

/// Runs programs.
///
/// [`run`](Executor::run) takes feeds and gives back what is fetched; it keeps the plans of the last shapes it met.
/// [`prepare`](Executor::prepare) gives the plan out of hand, for loops in which every microsecond counts.
pub struct Executor {
    cx: Arc<Cx>,
    ops: Option<Arc<OpInfoMap>>,
    check_finite: bool,
    loop_limit: Option<u64>,
    /// Most recently used first.
    sessions: VecDeque<(Key, Session)>,
    /// What callers keep with it.
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
struct Key {
    program: u64,
    scope: u64,
    feeds: Vec<(String, Meta)>,
    fetches: Vec<String>,
}

impl Key {
    fn is(&self, program: &Program, scope: &Scope, feeds: &[(&str, &dyn Feed)], fetches: &[&str]) -> bool {
        let same_feed = |((name, meta), (n, fed)): (&(String, Meta), &(&str, &dyn Feed))| {
            name == n && *meta == fed.meta()
        };
        self.program == program.stamp()
            && self.scope == scope.stamp()
            && self.feeds.len() == feeds.len()
            && self.feeds.iter().zip(feeds).all(same_feed)
            && self.fetches == fetches
    }
}

impl Default for Executor {
    fn default() -> Executor {
        Executor::new()
    }
}

impl Executor {
    /// Runs with as many threads as there are cores.
    pub fn new() -> Executor {
        Executor::with_threads(thread::available_parallelism().map_or(1, NonZero::get))
    }

    /// Runs with that many threads, the caller's among them, but no more than 1,024. Results do not depend on it.
    pub fn with_threads(threads: usize) -> Executor {
        Executor::of_cx(Arc::new(Cx::new(threads.max(1))))
    }

    /// Runs with the threads of others.
    #[doc(hidden)]
    pub fn of_cx(cx: Arc<Cx>) -> Executor {
        Executor {
            cx,
            ops: None,
            check_finite: false,
            loop_limit: None,
            sessions: VecDeque::new(),
            attached: None,
        }
    }

    /// Runs with these operators instead of those that this binary links.
    #[must_use]
    pub fn with_ops(self, ops: OpInfoMap) -> Executor {
        Executor { ops: Some(Arc::new(ops)), sessions: VecDeque::new(), attached: None, ..self }
    }

    /// Looks for NaN and infinities after every operator: the first one that has written any fails the run, before
    /// its results reach the scope. The error names the operator and its source line, of a gradient operator also the
    /// forward operator, and tells the ranges of what it has read and written.
    ///
    /// Operators are then neither fused nor run in place: results are the same to the bit, but take more time and memory.
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

    /// Lets no loop run its body more often than that: one that does not end by then fails the run. Without it, loops of
    /// programs that were read from a file ([`Program::load`], [`Program::from_json`]) end after a million steps, all
    /// others never.
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

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.cx.threads()
    }

    /// Plans a program for data of these dtypes and shapes, and for what is to be fetched. Only the operators are run
    /// that the fetches need or that write values of the scope. Values that the program writes to the scope for the
    /// first time get their memory there.
    ///
    /// # Errors
    /// A program that is not valid, as [`verify`](autobwd_core::verify()) tells it; feeds that do not fit the program; names that
    /// do not exist; values missing in the scope; shapes that are wrong: each with operator, variables and source line.
    pub fn prepare(
        &self,
        program: &impl AsRef<Program>,
        scope: &mut Scope,
        feeds: &[(&str, Meta)],
        fetches: &[&str],
    ) -> Result<Session> {
        let program = program.as_ref();
        let ops = self.operators()?;
        require_valid(ops, program)?;
        let loop_limit = self.loop_limit.or(program.is_loaded().then_some(LOADED_LOOP_LIMIT));
        let (options, known) = ((self.check_finite, loop_limit), scope.len());
        let program = &*cut(program, feeds)?;
        let session = Session::new(program, ops, scope, feeds, fetches, options, self.cx.clone());
        if session.is_err() {
            scope.truncate(known);
        }
        session
    }

    /// What [`prepare`](Executor::prepare) would make of a program, to look at: which operators run together, and when
    /// which value is where in memory. Touches no memory but its own.
    ///
    /// ```
    /// # use autobwd::{Builder, DType, Executor, Meta, Scope};
    /// # use autobwd_ops::Math;
    /// let net = Builder::new();
    /// let mean = net.input("x", DType::F32, &[-1, 3]).tanh().square().mean();
    /// let feeds = [("x", Meta::new(DType::F32, [100, 3]))];
    /// let plan = Executor::new().plan(&net.program()?, &Scope::new(), &feeds, &[&mean.name()])?;
    /// assert_eq!(plan.frames().len(), 1);
    /// assert_eq!(plan.frames()[0].operators, ["tanh", "square", "mean"]);
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
    ) -> Result<RunPlan> {
        let program = program.as_ref();
        let ops = self.operators()?;
        require_valid(ops, program)?;
        let program = &*cut(program, feeds)?;
        let kept = |name: &str| scope.meta(name);
        let request = Request::new(feeds, &kept, fetches, self.check_finite);
        Ok(RunPlan::new(program, &Plan::new(program, ops, &request)?))
    }

    /// Takes out what was attached; nothing, if that was of another type or options have changed.
    #[doc(hidden)]
    pub fn take_attached<T: Any + Default>(&mut self) -> T {
        let attached = self.attached.take().and_then(|attached| attached.downcast().ok());
        attached.map_or_else(T::default, |attached| *attached)
    }

    /// Keeps something for [`take_attached`](Executor::take_attached).
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

    /// Runs a program once and returns what is fetched. What is fed are tensors, arrays and views: [`Feed`]. A run that
    /// fails leaves the scope as it was.
    ///
    /// A variable that the program computes may be fed, too: the program is cut there. Its operator writes nothing to
    /// it, and operators that nothing else needs do not run, so that what they read need not be fed. A variable that is
    /// read before an operator writes it starts with what is fed.
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
    /// As [`prepare`](Executor::prepare) and [`Session::run`]. A fed variable that several operators write, or one in a
    /// sub-block: it would not keep what is fed.
    pub fn run(
        &mut self,
        program: &impl AsRef<Program>,
        scope: &mut Scope,
        feeds: &[(&str, &dyn Feed)],
        fetches: &[&str],
    ) -> Result<Vec<Tensor>> {
        let program = program.as_ref();
        let known = scope.len();
        let session = self.session(program, scope, feeds, fetches)?;
        let fed = feeds.iter().try_for_each(|(name, fed)| session.feed(name, *fed));
        let outcome = fed.and_then(|()| session.run(scope));
        if outcome.is_ok() {
            return (0..fetches.len()).map(|k| session.fetch_at(k)).collect();
        }
        if scope.len() > known {
            // Values that this run would have been the first to write are not there either.
            self.sessions.pop_front();
            scope.truncate(known);
        }
        outcome.map(|()| vec![])
    }

    fn session(
        &mut self,
        program: &Program,
        scope: &mut Scope,
        feeds: &[(&str, &dyn Feed)],
        fetches: &[&str],
    ) -> Result<&mut Session> {
        let known = self.sessions.iter().position(|(key, _)| key.is(program, scope, feeds, fetches));
        let entry = match known.and_then(|i| self.sessions.remove(i)) {
            Some(entry) => entry,
            None => {
                let metas: Vec<_> = feeds.iter().map(|(name, fed)| (*name, fed.meta())).collect();
                let session = self.prepare(program, scope, &metas, fetches)?;
                let key = Key {
                    program: program.stamp(),
                    scope: scope.stamp(),
                    feeds: metas.into_iter().map(|(name, meta)| (name.to_string(), meta)).collect(),
                    fetches: fetches.iter().map(ToString::to_string).collect(),
                };
                (key, session)
            }
        };
        self.sessions.truncate(SESSIONS - 1);
        self.sessions.push_front(entry);
        Ok(&mut self.sessions[0].1)
    }
}
