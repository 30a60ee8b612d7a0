//! Builders of programs and startup programs.

mod declarations;
mod names;

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    panic::Location,
    rc::Rc,
};

use rustc_hash::FxHashMap;

use super::{
    Expr, ProgramSnapshot,
    engine::Engine,
    guards::{BlockGuard, Setting, SiteGuard},
    transaction::{Savepoint, Transaction},
    value::Value,
};
use crate::{
    BlockId, Dim, Error, ErrorKind, OpInfoMap, Program, Result, Var, VarDesc,
    desc::{ProgramSignature, SignatureEntry},
    op::LoopForm,
};

/// A builder of a program and of its startup program, which initialises persistable variables. `autobwd::eager` makes
/// an eager builder instead, whose expressions are computed immediately.
///
/// A `Builder` is a handle: clones build the same program.
///
/// A builder of a program records the first [`Expr`] that failed, whether or not the expression is used, and never
/// yields a program from then on. An eager builder has no program to withhold: failed expressions and those computed
/// from them carry the error themselves.
///
/// ```
/// use autobwd::{Builder, DType};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 4]);
/// assert_eq!(x.to_string(), "x: float32 [-1, 4]");
/// net.input("x", DType::F32, &[4]);
/// let e = net.program().unwrap_err();
/// assert_eq!(e.message(), "the program has a variable `x` already");
/// assert!(e.to_string().contains("\n  at ")); // … and the line of the second call.
/// ```
#[derive(Clone)]
pub struct Builder(Rc<BuilderState>);

struct BuilderState {
    /// Shared with live snapshots. Borrowed briefly only, never while user code runs.
    program: RefCell<Rc<Program>>,
    /// The block to which operators are appended.
    block: Cell<BlockId>,
    /// Where the open transactions started.
    savepoints: RefCell<Vec<Savepoint>>,
    /// The source line of operators and failures, instead of their own.
    sites: Setting<&'static Location<'static>>,
    ops: Option<Rc<OpInfoMap>>,
    startup: Option<Builder>,
    /// The eager engine, for an eager builder.
    engine: Option<Rc<dyn Engine>>,
    /// Parameters and other named values, for an eager builder.
    values: RefCell<FxHashMap<Var, Value>>,
    /// The error of the first expression that failed, here or in the startup program.
    failure: Rc<RefCell<Option<Error>>>,
    /// The number of layers by name prefix.
    layers: RefCell<HashMap<String, usize>>,
    /// The name scopes around the current layer, each followed by a dot.
    name_scopes: Setting<String>,
    /// Whether layers are called for evaluation.
    eval_mode: Cell<bool>,
    /// The form of recurrences.
    loop_form: Cell<LoopForm>,
}

impl BuilderState {
    fn new(
        ops: Option<Rc<OpInfoMap>>,
        startup: Option<Builder>,
        engine: Option<Rc<dyn Engine>>,
    ) -> BuilderState {
        let failure = startup.as_ref().map(|startup| startup.0.failure.clone()).unwrap_or_default();
        BuilderState {
            program: RefCell::default(),
            block: Cell::new(BlockId::ROOT),
            savepoints: RefCell::default(),
            sites: Setting::default(),
            ops,
            startup,
            engine,
            values: RefCell::default(),
            failure,
            layers: RefCell::default(),
            name_scopes: Setting::default(),
            eval_mode: Cell::new(false),
            loop_form: Cell::new(LoopForm::Block),
        }
    }
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl Builder {
    /// An empty program over the operators that are linked into this binary.
    pub fn new() -> Builder {
        Builder::with(None)
    }

    /// An empty program over these operators.
    pub fn with_ops(ops: OpInfoMap) -> Builder {
        Builder::with(Some(Rc::new(ops)))
    }

    fn with(ops: Option<Rc<OpInfoMap>>) -> Builder {
        let new = |ops, startup| Builder(Rc::new(BuilderState::new(ops, startup, None)));
        let startup = new(ops.clone(), None);
        startup.change(Program::mark_startup);
        new(ops, Some(startup))
    }

    /// An eager builder with this engine, and with these operators or those linked into this binary.
    pub(crate) fn with_engine(engine: Rc<dyn Engine>, ops: Option<OpInfoMap>) -> Builder {
        Builder(Rc::new(BuilderState::new(ops.map(Rc::new), None, Some(engine))))
    }

    /// The eager engine, for an eager builder.
    pub(crate) fn engine(&self) -> Option<&dyn Engine> {
        self.0.engine.as_deref()
    }

    /// The value of this name, for an eager builder.
    pub(super) fn value_of(&self, var: Var) -> Option<Value> {
        self.0.values.borrow().get(&var).cloned()
    }

    /// Makes the value a constant from now on, if it has a name here.
    pub(super) fn freeze_value(&self, value: &Value) {
        for kept in self.0.values.borrow_mut().values_mut().filter(|kept| kept.same(value)) {
            *kept = kept.clone().constant();
        }
    }

    /// Whether both build the same program, or use the same engine.
    pub(crate) fn is(&self, other: &Builder) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Whether expressions are computed immediately.
    pub fn is_eager(&self) -> bool {
        self.0.engine.is_some()
    }

    /// Whether recurrences over sequences are unrolled: the builder is eager, or records a composition that is
    /// differentiated. It then has no [`sub_block`](Builder::sub_block)s.
    pub fn unrolls_loops(&self) -> bool {
        self.is_eager() || self.0.loop_form.get() == LoopForm::Unrolled
    }

    /// Sets the form of recurrences.
    pub(crate) fn set_loop_form(&self, form: LoopForm) {
        self.0.loop_form.set(form);
    }

    /// The operators that it can append.
    ///
    /// # Errors
    /// The errors of [`OpInfoMap::linked`].
    pub fn ops(&self) -> Result<&OpInfoMap> {
        match &self.0.ops {
            Some(ops) => Ok(ops),
            None => OpInfoMap::linked(),
        }
    }

    /// The startup program, which initialises parameters and other persistable variables. Run it once, before the
    /// program itself.
    pub fn startup(&self) -> Builder {
        self.0.startup.as_ref().unwrap_or(self).clone()
    }

    /// The program so far. The program of an eager builder has names, but no operators.
    ///
    /// # Errors
    /// An expression of it, or of its startup program, has failed.
    pub fn program(&self) -> Result<ProgramSnapshot> {
        self.check()?;
        Ok(self.snapshot())
    }

    /// The program so far, whether or not an expression has failed.
    pub(crate) fn snapshot(&self) -> ProgramSnapshot {
        ProgramSnapshot(self.0.program.borrow().clone())
    }

    /// Whether no expression has failed so far.
    ///
    /// # Errors
    /// As [`program`](Builder::program): the error of the first expression that failed. None in eager mode, where
    /// expressions carry their errors.
    pub fn check(&self) -> Result<()> {
        self.0.failure.borrow().clone().map_or(Ok(()), Err)
    }

    /// An expression that failed with this error, for layers that check their arguments. An error without a source line
    /// gets the line of the call.
    ///
    /// ```
    /// use autobwd::{Builder, DType, Error, ErrorKind, Expr};
    /// # use autobwd_ops::Math;
    /// #[track_caller]
    /// fn halves(x: &Expr) -> Vec<Expr> {
    ///     match x.dims().last().and_then(|dim| dim.get()) {
    ///         Some(n) if n % 2 == 0 => x.split(&[n as i32 / 2; 2], -1),
    ///         _ => {
    ///             // If `x` itself has failed, its error is the first one.
    ///             let odd = Error::new(ErrorKind::Shape, format!("{x} has no halves"));
    ///             vec![x.builder().failed(x.check().err().unwrap_or(odd)); 2]
    ///         }
    ///     }
    /// }
    /// let net = Builder::new();
    /// let out = halves(&net.input("x", DType::F32, &[-1, 3]))[1].relu();
    /// assert!(out.to_string().starts_with("x: float32 [-1, 3] has no halves\n  at "));
    /// ```
    #[track_caller]
    pub fn failed(&self, error: Error) -> Expr {
        self.failed_at(error, Location::caller())
    }

    #[cold]
    pub(crate) fn failed_at(&self, error: Error, at: &'static Location<'static>) -> Expr {
        let error = error.of_failure(self.site_or(at));
        self.record_failure(&error);
        Expr::of_error(self, error)
    }

    /// Records the error of an expression, if it is the first to fail.
    pub(super) fn record_failure(&self, error: &Error) {
        if !self.is_eager() {
            self.0.failure.borrow_mut().get_or_insert_with(|| error.clone());
        }
    }

    /// Edits the program directly. The closure edits a copy, which replaces the program if the closure succeeds;
    /// meanwhile, the builder still has the old program.
    ///
    /// ```
    /// use autobwd::{Builder, DType, Expr, append_backward, Backward};
    /// use autobwd_ops::Math;
    /// let net = Builder::new();
    /// let loss = net.parameter("w", DType::F32, &[2], Expr::clone).mean();
    /// net.edit(|program| append_backward(program, &loss.name(), &Backward::default()))?;
    /// assert!(net.expr("w@GRAD").check().is_ok());
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`program`](Builder::program) and of the closure; a closure that also changes the program through
    /// its builder. The copy is then dropped.
    pub fn edit<T>(&self, edit: impl FnOnce(&mut Program) -> Result<T>) -> Result<T> {
        let before = self.program()?;
        let mut program = (*before).clone();
        let outcome = edit(&mut program)?;
        self.check()?;
        if !Rc::ptr_eq(&before.0, &self.0.program.borrow()) {
            let text = "the program was changed through its builder while `edit` changed a copy of it";
            return Err(Error::new(ErrorKind::Program, text));
        }
        self.set_program(program);
        Ok(outcome)
    }

    /// Sets the named inputs and outputs of the program ([`ProgramSignature`](crate::ProgramSignature)).
    ///
    /// # Errors
    /// A failed expression; the errors of [`Program::set_signature`].
    pub fn set_signature(&self, inputs: &[(&str, &Expr)], outputs: &[(&str, &Expr)]) -> Result<()> {
        let entries = |all: &[(&str, &Expr)]| {
            let entry = |(name, expr): &(&str, &Expr)| {
                expr.check().map(|expr| SignatureEntry { name: (*name).into(), variable: expr.name() })
            };
            all.iter().map(entry).collect::<Result<Vec<_>>>()
        };
        let signature = ProgramSignature { inputs: entries(inputs)?, outputs: entries(outputs)? };
        self.edit(|program| program.set_signature(signature))
    }

    /// Replaces the program. Variables of the old one keep their meaning where the new one has the same names in the
    /// same order, as an edited clone does. A recorded failure stays: the failed expression may also be part of the
    /// new program.
    pub fn set_program(&self, program: Program) {
        self.save_for(|_| true);
        self.0.program.replace(Rc::new(program));
    }

    /// Changes the program in place, or a copy of it while a snapshot is alive. The closure must not call user code.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Program) -> T) -> T {
        change(Rc::make_mut(&mut self.0.program.borrow_mut()))
    }

    /// As [`change`](Builder::change), for a change that replaces something, where most changes add something.
    pub(crate) fn replace<T>(&self, change: impl FnOnce(&mut Program) -> T) -> T {
        self.save_for(|_| true);
        self.change(change)
    }

    /// Keeps the program as it is now for open transactions that need it, unless they have one.
    fn save_for(&self, needs: impl Fn(&Savepoint) -> bool) {
        let mut savepoints = self.0.savepoints.borrow_mut();
        for savepoint in savepoints.iter_mut().filter(|s| s.replaced.is_none() && needs(s)) {
            savepoint.replaced = Some(self.0.program.borrow().clone());
        }
    }

    /// Marks a variable of this block.
    pub(super) fn stop_gradient(&self, block: BlockId, var: Var) {
        let is_new = self.change(|program| {
            let desc = program.block_mut(block).and_then(|block| block.vars.get_mut(&var));
            desc.is_some_and(|desc| !std::mem::replace(&mut desc.stop_gradient, true))
        });
        let mut savepoints = self.0.savepoints.borrow_mut();
        for savepoint in savepoints.iter_mut().filter(|s| is_new && s.replaced.is_none()) {
            savepoint.marked.push((block, var));
        }
    }

    /// Starts a transaction: all later changes of the program and of its startup program are undone unless it is
    /// committed. For functions that add several things and may fail midway. The record of a failed expression stays
    /// unless the transaction is [aborted](Transaction::abort).
    pub fn transaction(&self) -> Transaction {
        Transaction::new(self)
    }

    /// Adds an open transaction; returns its depth.
    pub(super) fn open_transaction(&self, savepoint: Savepoint) -> usize {
        let mut savepoints = self.0.savepoints.borrow_mut();
        savepoints.push(savepoint);
        savepoints.len() - 1
    }

    /// Ends the transaction of this depth, and those within it; `None` if one around it has ended before.
    pub(super) fn close_transaction(&self, depth: usize) -> Option<Savepoint> {
        let mut savepoints = self.0.savepoints.borrow_mut();
        let depth = depth.min(savepoints.len());
        savepoints.drain(depth..).next()
    }

    /// Replaces the program by an earlier one. Names stay, so that expressions keep theirs.
    pub(super) fn restore(&self, before: Rc<Program>) {
        let after = self.0.program.replace(before);
        self.change(|program| program.keep_names(&after));
    }

    pub(super) fn forget_failure(&self) {
        *self.0.failure.borrow_mut() = None;
    }

    pub(super) fn own_startup(&self) -> Option<&Builder> {
        self.0.startup.as_ref()
    }

    /// Gives all operators and failures this source line until the guard is dropped, unless an outer guard gives them
    /// another: for functions that take closures or trait objects, which do not record the caller's line.
    ///
    /// ```
    /// # use autobwd::{Builder, DType, Expr};
    /// # use autobwd_ops::Math;
    /// use std::panic::Location;
    /// #[track_caller]
    /// fn twice(x: &Expr, function: impl Fn(&Expr) -> Expr) -> Expr {
    ///     let _site = x.builder().called_at(Location::caller());
    ///     function(&function(x))
    /// }
    /// let net = Builder::new();
    /// twice(&net.input("x", DType::F32, &[2]), Math::tanh);
    /// let lines: Vec<_> = net.program()?.root().ops.iter().map(|op| op.site).collect();
    /// assert_eq!(lines[0], lines[1]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    pub fn called_at(&self, line: &'static Location<'static>) -> SiteGuard {
        SiteGuard::new(self, line)
    }

    /// The source line for an operator or failure with this line of its own.
    #[inline]
    pub(crate) fn site_or(&self, own: &'static Location<'static>) -> &'static Location<'static> {
        self.0.sites.outermost().unwrap_or(own)
    }

    /// The source lines that guards give to operators.
    pub(super) fn sites(&self) -> &Setting<&'static Location<'static>> {
        &self.0.sites
    }

    /// Sets the block to which operators are appended, and returns the previous one.
    pub(super) fn set_block(&self, block: BlockId) -> BlockId {
        self.0.block.replace(block)
    }

    /// The block to which operators are appended.
    pub fn block(&self) -> BlockId {
        self.0.block.get()
    }

    /// Appends the operators of `body` to a new block within the current one: for operators that run sub-blocks.
    ///
    /// # Errors
    /// The errors of `body`; an expression that fails in it; a parameter that it overwrites; a builder that
    /// [unrolls loops](Builder::unrolls_loops).
    #[track_caller]
    pub fn sub_block<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<(BlockId, T)> {
        if self.is_eager() {
            let text = "an eager builder has no sub-blocks; use a program's builder";
            return Err(Error::new(ErrorKind::Program, text));
        }
        if self.unrolls_loops() {
            let text =
                "a composition that is differentiated has no control flow but recurrences over sequences";
            return Err(Error::new(ErrorKind::NoGradient, text));
        }
        let (around, at) = (self.block(), Location::caller());
        let transaction = self.transaction();
        let block = self.change(|program| program.add_block(Some(around), None));
        // Earlier failures did not happen in this block.
        let (sound, failures) = (self.check().is_ok(), Error::failures());
        let placed = |e: Error| match e.is_among(failures) {
            true => e,
            false => e.within(|| {
                format!("block {} in block {}, at {}:{}", block.index(), around.index(), at.file(), at.line())
            }),
        };
        let mut outcome = self.within(block, body);
        if sound && let Some(first) = self.0.failure.borrow_mut().as_mut() {
            outcome = Err(first.clone());
            *first = placed(first.clone());
        }
        let outcome = outcome.and_then(|found| {
            let program = self.snapshot();
            let all = program.outer_writes(block);
            program.check_outer_writes(block, &all).into_iter().try_for_each(Err)?;
            Ok(found)
        });
        if outcome.is_ok() {
            transaction.commit();
        }
        outcome.map(|found| (block, found)).map_err(placed)
    }

    /// Appends the operators of `body` to this block.
    pub fn within<T>(&self, block: BlockId, body: impl FnOnce() -> T) -> T {
        self.save_for(|savepoint| !savepoint.covers(block));
        let _within = BlockGuard::new(self, block);
        body()
    }

    /// A new variable of a block, `prefix_0`, …, for an operator to write.
    pub fn variable(&self, block: BlockId, prefix: &str, desc: VarDesc) -> Expr {
        self.save_for(|savepoint| !savepoint.covers(block));
        let var = self.change(|program| {
            let var = program.fresh(prefix);
            program.block_mut(block).map(|block| block.vars.insert(var, desc));
            var
        });
        Expr::of_var(self, var)
    }

    /// Also declares a variable in another block, where it is a separate variable. Does nothing for eager values and
    /// failed expressions.
    pub fn declare_in(&self, block: BlockId, var: &Expr, desc: VarDesc) {
        if var.var() == Var::EMPTY {
            return;
        }
        let is_known = self.snapshot().block(block).is_some_and(|block| block.vars.contains_key(&var.var()));
        self.save_for(|savepoint| is_known || !savepoint.covers(block));
        self.change(|program| program.block_mut(block).map(|block| block.vars.insert(var.var(), desc)));
    }

    /// Declares dimensions of a result, which was computed in this block, that its shape rule does not know: numbers, and
    /// polynomials of names, where it has unknown ones. Eager values and failed expressions stay as they are.
    pub fn refine(&self, result: &Expr, dims: &[Dim]) {
        let block = self.block();
        // A change of a fact, which needs no undoing.
        self.change(|program| {
            let desc = program.block_mut(block).and_then(|block| block.vars.get_mut(&result.var()));
            if let Some(desc) = desc.filter(|desc| desc.dims.agrees(dims)) {
                desc.dims.iter_mut().zip(dims).for_each(|(declared, dim)| *declared = declared.or(*dim));
            }
        });
    }

    /// A variable of the program as an expression.
    pub fn existing(&self, var: Var) -> Expr {
        Expr::of_var(self, var)
    }

    /// The variable of this name as an expression, which fails if there is none; the error suggests similar names. To
    /// test whether it exists, use [`Program::find`].
    #[track_caller]
    pub fn expr(&self, name: &str) -> Expr {
        let var = match self.snapshot().expect_var(name) {
            Ok(var) => var,
            Err(e) => return self.failed(e),
        };
        if !self.is_eager() {
            return Expr::of_var(self, var);
        }
        match self.value_of(var) {
            Some(value) => Expr::of_value(self, value),
            None => self.failed(Error::new(ErrorKind::UnknownVar, format!("`{name}` has no value"))),
        }
    }
}
