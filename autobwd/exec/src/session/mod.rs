//! Sessions: bound plans with feeds, fetches and runs.

pub(crate) mod feed;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use ndarray::{ArrayView, Dimension};

use crate::{
    Feed, Scope,
    bind::{
        binder::{bind, bind_step},
        bound_block::{BlockEnd, BoundBlock, BoundInstruction},
        segment::{BindOptions, SegmentPlanner},
    },
    norm::l2_norm,
    observer::Observers,
    scope::BoundScope,
    trace::{RunTrace, STEP_SPANS},
};
use autobwd_core::{
    __private::{
        Arena, Initialisers, Memory, did_you_mean, dimension, internals::*, record_worker_spans, span,
    },
    BlockId, Cx, Element, Error, ErrorKind, Meta, OpInfoMap, Program, Result, Tensor,
    tensor::{Rows, ToF64},
    with_dtype,
};
use autobwd_plan::{Location, Plan, PlanRequest};

/// A program prepared for fixed shapes and fetches: a plan with its memory.
///
/// A run allocates nothing:
///
/// ```
/// use autobwd::{Builder, DType, Executor, Meta, Scope, Tensor};
/// use autobwd_ops::Math;
///
/// let net = Builder::new();
/// let mean = net.input("x", DType::F32, &[-1]).mean();
/// let (executor, mut scope) = (Executor::new(), Scope::new());
/// let feeds = [("x", Meta::new(DType::F32, [3]))];
/// let mut session = executor.prepare(&net.program()?, &mut scope, &feeds, &[&mean.name()])?;
/// for batch in [[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]] {
///     session.feed("x", &Tensor::from_vec([3], batch.to_vec())?)?;
///     session.run(&mut scope)?;
///     assert_eq!(session.item(&mean.name())?, f64::from(batch[1]));
/// }
/// # Ok::<(), autobwd::Error>(())
/// ```
pub struct Session {
    block: BoundBlock,
    cx: Arc<Cx>,
    /// The stamp of the scope whose memory the instructions point into.
    scope: u64,
    feeds: Vec<FeedSlot>,
    fetches: Vec<String>,
    /// The operators of each instruction, for profiles; `None` for a copy of a value that is fetched or kept.
    labels: Vec<Option<String>>,
    lent_bytes: usize,
    live_bytes: usize,
    initialisers: Initialisers,
    ran: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let feeds: Vec<_> = self.feeds.iter().map(|slot| (&slot.name, &slot.meta)).collect();
        let mut text = f.debug_struct("Session");
        text.field("feeds", &feeds).field("fetches", &self.fetches);
        text.field("instructions", &self.instruction_count())
            .field("peak_bytes", &self.peak_bytes())
            .finish_non_exhaustive()
    }
}

struct FeedSlot {
    name: String,
    meta: Meta,
    at: usize,
    set: bool,
}

impl Session {
    pub(crate) fn new(
        program: &Program,
        ops: &OpInfoMap,
        scope: &mut BoundScope<'_>,
        feeds: &[(&str, Meta)],
        fetches: &[&str],
        (observers, loop_limit): (&Observers, Option<u64>),
        cx: Arc<Cx>,
    ) -> Result<Session> {
        let kept = |name: &str| scope.scope().meta(name);
        let mut options = BindOptions { observers, loop_limit, cx: &cx, planner: None };
        let request = PlanRequest::new(feeds, &kept, fetches, options.is_observed());
        let plan = Plan::new(program, ops, &request)?;
        let arena = Arena::Own(Memory::zeroed(plan.memory.arena_bytes)?);
        let planner = plan
            .graph
            .tail
            .as_deref()
            .map(|tail| SegmentPlanner::new(program, ops, tail, scope, options, bind_step));
        let planner = planner.transpose()?.map(Arc::new);
        options.planner = planner.as_ref();
        let bound = bind(program, BlockId::ROOT, &plan, &arena, Some(scope), &[], options)?;
        let lent_bytes = cx.reserve(bound.lent_bytes)?;
        let slot = |(name, value, location): (&&str, usize, Location)| match location {
            Location::Arena(at) => {
                let meta = plan.graph.values[value].meta.clone();
                Ok(FeedSlot { name: (*name).into(), meta, at, set: false })
            }
            _ => Err(Error::internal(format!("`{name}` has no place in the arena"))),
        };
        let labels = labels(&plan, &bound.instructions).skip(bound.constants).collect();
        let body = BoundBlock::new(program, BlockId::ROOT, &plan, arena, bound, &cx)?;
        let locations = &plan.memory.locations;
        let names = feeds.iter().map(|(name, _)| name);
        let fed = names.zip(&plan.graph.feeds).map(|(name, v)| slot((name, *v, locations[*v])));
        Ok(Session {
            feeds: fed.collect::<Result<_>>()?,
            fetches: fetches.iter().map(ToString::to_string).collect(),
            labels,
            lent_bytes,
            block: body,
            cx,
            scope: scope.scope().stamp(),
            live_bytes: plan.memory.live_bytes,
            initialisers: Initialisers::of(program),
            ran: false,
        })
    }

    /// The memory of a feed, to be written; it then counts as fed.
    ///
    /// # Errors
    /// A name that the session was not prepared for; another dtype.
    pub fn feed_mut<T: Element>(&mut self, name: &str) -> Result<&mut [T]> {
        let slot = fed(&mut self.feeds, name)?;
        if slot.meta.dtype != T::DTYPE {
            let text = format!("`{name}` is {}, not {}", slot.meta.dtype, T::DTYPE);
            return Err(Error::new(ErrorKind::Feed, text));
        }
        slot.set = true;
        Ok(self.block.arena.slice_mut(slot.at, slot.meta.dims.numel().get().unwrap_or(0)))
    }

    /// Copies data in: a tensor, an array or a view of one.
    ///
    /// # Errors
    /// A name that the session was not prepared for, or another dtype or shape.
    pub fn feed(&mut self, name: &str, data: &(impl Feed + ?Sized)) -> Result<()> {
        let (meta, given) = (&fed(&mut self.feeds, name)?.meta, data.meta());
        if *meta != given {
            let text = format!("`{name}` cannot be fed: the session was prepared for {meta}, not {given}");
            return Err(Error::new(ErrorKind::Feed, text));
        }
        data.feed(name, self)
    }

    /// Runs the program once. Every feed must have been written since the last run, because its memory is reused during
    /// a run.
    ///
    /// A step commits as a whole: a failed step leaves the values of the scope as they were. For that, each run copies
    /// the values that are overwritten ahead of an operator that may fail (`infallible` of [`register_op`](autobwd_core::register_op)
    /// marks operators that do not); in training programs, these are usually statistics and counters. With
    /// [`check_finite`](crate::Executor::check_finite) or an observer, every operator may fail, so all are copied.
    ///
    /// The exception is a kernel that panics although its operator is marked infallible, a fault of its author: values
    /// that were overwritten before it, and are not copied, stay overwritten. After an error of the kind
    /// [`Panic`](autobwd_core::ErrorKind::Panic), go on from a checkpoint.
    ///
    /// # Errors
    /// A missing feed; a scope other than the prepared one, or one in which a value was replaced by one of another
    /// shape; a startup program for a value that another one has initialised by another operator; data that an operator
    /// rejects; a NaN or an infinity, if the executor checks for them.
    pub fn run(&mut self, scope: &mut Scope) -> Result<()> {
        self.initialising(scope, Session::run_on)
    }

    /// Runs on a scope whose values this program may initialise.
    fn initialising<T>(
        &mut self,
        scope: &mut Scope,
        run: impl FnOnce(&mut Session, &Scope) -> Result<T>,
    ) -> Result<T> {
        scope.initialisers().check(&self.initialisers)?;
        let outcome = run(self, scope)?;
        scope.record(&self.initialisers);
        Ok(outcome)
    }

    /// As [`run`](Session::run); the scope may be a shared one.
    pub(crate) fn run_on(&mut self, scope: &Scope) -> Result<()> {
        self.each_instruction(scope, |instruction, cx| instruction.kernel.run(cx))
    }

    /// As [`run`](Session::run), and returns for each instruction its duration and its operator types, several for a
    /// fused kernel.
    ///
    /// # Errors
    /// As [`run`](Session::run).
    pub fn profile(&mut self, scope: &mut Scope) -> Result<Vec<(&str, Duration)>> {
        let mut times = Vec::with_capacity(self.block.instructions.len());
        self.initialising(scope, |session, scope| {
            session.each_instruction(scope, |instruction, cx| {
                let start = Instant::now();
                instruction.kernel.run(cx)?;
                times.push(start.elapsed());
                Ok(())
            })
        })?;
        let labels = self.labels.iter().map(|label| label.as_deref().unwrap_or("copy"));
        Ok(labels.zip(times).collect())
    }

    /// As [`run`](Session::run), and adds a step with the times of all instructions and of all threads to a trace.
    ///
    /// # Errors
    /// As [`run`](Session::run); a trace of another plan.
    pub fn trace(&mut self, scope: &mut Scope, trace: &mut RunTrace) -> Result<()> {
        trace.expect(self.labels.iter().map(Option::is_some))?;
        let (start, mut times) = (trace.now(), Vec::with_capacity(self.labels.len()));
        let (outcome, spans) = record_worker_spans(STEP_SPANS, || {
            self.initialising(scope, |session, scope| {
                session.each_instruction(scope, |instruction, cx| {
                    let start = trace.now();
                    instruction.kernel.run(cx)?;
                    times.push((start, trace.now() - start));
                    Ok(())
                })
            })
        });
        outcome?;
        trace.add(start, times, &spans);
        Ok(())
    }

    #[inline]
    fn each_instruction(
        &mut self,
        scope: &Scope,
        mut each: impl FnMut(&mut BoundInstruction, &Cx) -> Result<()>,
    ) -> Result<()> {
        span!("run", instructions = self.block.instructions.len());
        if scope.stamp() != self.scope {
            let text = "the session was prepared for another scope, or a value of the scope has changed its shape; \
                        prepare it again";
            return Err(Error::new(ErrorKind::NoValue, text));
        }
        if let Some(slot) = self.feeds.iter().find(|s| !s.set) {
            return Err(Error::new(
                ErrorKind::Feed,
                format!("`{}` has not been fed since the last run; feed it before every run", slot.name),
            ));
        }
        self.feeds.iter_mut().for_each(|s| s.set = false);
        self.ran = false;
        self.constants_are_fed()?;
        self.block.each_instruction(&self.cx, |instruction| each(instruction, &self.cx))?;
        self.ran = true;
        Ok(())
    }

    /// Checks that feeds which the session was prepared for with their elements have these.
    fn constants_are_fed(&self) -> Result<()> {
        for slot in &self.feeds {
            let Some(constant) = slot.meta.constant() else { continue };
            let same = with_dtype!(slot.meta.dtype, T => {
                let fed = self.block.arena.slice::<T>(slot.at, constant.len());
                fed.iter().zip(constant).all(|(fed, constant)| fed.to_f64().to_bits() == constant.to_bits())
            });
            if !same {
                let text =
                    format!("`{}` cannot be fed: the session was prepared for other elements", slot.name);
                return Err(Error::new(ErrorKind::Feed, text));
            }
        }
        Ok(())
    }

    fn fetched_at(&self, k: usize) -> Result<(&Memory, &BlockEnd)> {
        if !self.ran {
            return Err(Error::new(ErrorKind::Fetch, "the session has not run yet, or its last run failed"));
        }
        self.block.end(k)
    }

    fn fetched(&self, name: &str) -> Result<(&Memory, &BlockEnd)> {
        let Some(k) = self.fetches.iter().position(|fetch| fetch == name) else {
            let hint = did_you_mean(name, self.fetches.iter().map(String::as_str));
            let text = format!("the session was not prepared to fetch `{name}`{hint}");
            return Err(Error::new(ErrorKind::Fetch, text));
        };
        self.fetched_at(k)
    }

    /// As [`fetch`](Session::fetch), by position.
    pub(crate) fn fetch_at(&self, k: usize) -> Result<Tensor> {
        let (memory, BlockEnd { meta, range, .. }) = self.fetched_at(k)?;
        Tensor::copy_of(memory, range.at, meta)
    }

    /// The elements of a fetched value.
    ///
    /// # Errors
    /// A name that the session was not prepared for; another dtype; no run yet.
    pub fn slice<T: Element>(&self, name: &str) -> Result<&[T]> {
        let (memory, BlockEnd { meta, range, .. }) = self.fetched(name)?;
        if meta.dtype != T::DTYPE {
            let text = format!("`{name}` holds {}, not {}", meta.dtype, T::DTYPE);
            return Err(Error::new(ErrorKind::DType, text));
        }
        if meta.rows.is_some() {
            let text =
                format!("`{name}` is sparse; use `rows` for its rows, or `fetch` for the dense tensor");
            return Err(Error::new(ErrorKind::Fetch, text));
        }
        Ok(memory.slice(range.at, meta.dims.numel().get().unwrap_or(0)))
    }

    /// A fetched value as an array of fixed or dynamic rank, without a copy.
    ///
    /// # Errors
    /// As [`slice`](Session::slice), and another rank.
    pub fn view<T: Element, D: Dimension>(&self, name: &str) -> Result<ArrayView<'_, T, D>> {
        let (elements, (_, BlockEnd { meta, .. })) = (self.slice(name)?, self.fetched(name)?);
        let dims = meta.dims.known().as_deref().and_then(dimension::<D>).ok_or_else(|| {
            let rank = D::NDIM.unwrap_or_default();
            Error::new(ErrorKind::Shape, format!("`{name}` is {meta}, not an array of {rank} dimensions"))
        })?;
        ArrayView::from_shape(dims, elements).map_err(Error::internal)
    }

    /// The rows of a fetched sparse gradient.
    ///
    /// # Errors
    /// A name that the session was not prepared for; no run yet; another dtype; a dense tensor.
    pub fn rows<T: Element>(&self, name: &str) -> Result<Rows<'_, T>> {
        let (memory, BlockEnd { meta, range, .. }) = self.fetched(name)?;
        if meta.rows.is_none() || meta.dtype != T::DTYPE {
            let text = format!("`{name}` holds {meta}, not rows of {}", T::DTYPE);
            return Err(Error::new(ErrorKind::DType, text));
        }
        Ok(memory.rows(range.at, meta))
    }

    /// A fetched value as a new tensor; for a sparse gradient the dense tensor, with zeros in all other rows.
    ///
    /// # Errors
    /// A name that the session was not prepared for; no run yet; no memory.
    pub fn fetch(&self, name: &str) -> Result<Tensor> {
        let (memory, BlockEnd { meta, range, .. }) = self.fetched(name)?;
        Tensor::copy_of(memory, range.at, meta)
    }

    /// The only element of a fetched value.
    ///
    /// # Errors
    /// A name that the session was not prepared for; no run yet; another number of elements.
    pub fn item(&self, name: &str) -> Result<f64> {
        let (memory, BlockEnd { meta, range, .. }) = self.fetched(name)?;
        if meta.dims.numel() != 1 {
            let text = format!("`{name}` has shape {}, not one element", meta.dims);
            return Err(Error::new(ErrorKind::Shape, text));
        }
        if meta.rows.is_some() {
            return self.fetch(name)?.item();
        }
        Ok(with_dtype!(meta.dtype, T => memory.slice::<T>(range.at, 1)[0].to_f64()))
    }

    /// The Euclidean norm of a fetched value.
    pub(crate) fn norm(&self, name: &str) -> Result<f64> {
        let (memory, BlockEnd { meta, range, .. }) = self.fetched(name)?;
        Ok(with_dtype!(meta.dtype, T => match meta.rows {
            Some(_) => l2_norm(memory.rows::<T>(range.at, meta).values()),
            None => l2_norm(memory.slice::<T>(range.at, meta.dims.numel().get().unwrap_or(0))),
        }))
    }

    /// Bytes of tensor memory of a run, known before it runs: [`arena_bytes`](Session::arena_bytes) and
    /// [`scratch_bytes`](Session::scratch_bytes). It excludes values in the scope, packed parts of factors of
    /// matrix products (5 MB at most for each thread), tensor arrays, and saved step state of loops with unknown trip count, such as
    /// a `while`.
    ///
    /// For operators of dynamic shape, it counts the memory in use now.
    pub fn peak_bytes(&self) -> usize {
        self.block.bytes().saturating_add(self.lent_bytes)
    }

    /// Bytes apart from the arena: fused kernels, saved steps of loops, and scratch memory of kernels, which sessions of one
    /// executor share.
    pub fn scratch_bytes(&self) -> usize {
        self.peak_bytes() - self.arena_bytes()
    }

    /// Bytes of the arena, in which sub-blocks have theirs while they run.
    pub fn arena_bytes(&self) -> usize {
        self.block.arena.len()
    }

    /// Bytes of copies of values of the scope.
    pub(crate) fn copied_bytes(&self) -> usize {
        self.block.copied_bytes()
    }

    /// Maximum of the sum of bytes of live values: a lower bound for any arena.
    pub fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    /// The number of instructions in a run: kernels, fused kernels of elementwise operators, copies.
    pub fn instruction_count(&self) -> usize {
        self.block.instructions.len()
    }
}

fn fed<'a>(feeds: &'a mut [FeedSlot], name: &str) -> Result<&'a mut FeedSlot> {
    match feeds.iter().position(|s| s.name == name) {
        Some(at) => Ok(&mut feeds[at]),
        None => {
            let hint = did_you_mean(name, feeds.iter().map(|s| s.name.as_str()));
            let text = format!("the session was not prepared to be fed `{name}`{hint}");
            Err(Error::new(ErrorKind::Feed, text))
        }
    }
}

/// The labels of instructions. A copy follows the instruction that writes its value, or runs without operators.
fn labels(plan: &Plan, instructions: &[BoundInstruction]) -> impl Iterator<Item = Option<String>> {
    let mut last = None;
    instructions.iter().map(move |instruction| {
        let is_copy = plan.groups.is_empty() || last == Some(instruction.node);
        last = Some(instruction.node);
        (!is_copy).then(|| label(plan, instruction))
    })
}

/// The operator types of an instruction, each once.
fn label(plan: &Plan, instruction: &BoundInstruction) -> String {
    let first = plan.groups.partition_point(|group| group.nodes.start < instruction.node);
    let fused = plan.groups[first + 1..].iter().take_while(|group| group.shares_instruction);
    let end = fused.last().unwrap_or(&plan.groups[first]).nodes.end;
    let mut types: Vec<&str> = vec![];
    for node in &plan.graph.instructions[instruction.node..end] {
        let ty = &*node.desc.ty;
        if !types.contains(&ty) {
            types.push(ty);
        }
    }
    types.join(" + ")
}
