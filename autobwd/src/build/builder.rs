use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    panic::Location,
    rc::Rc,
};

use smallvec::SmallVec;

use super::{
    Arg, Expr, ProgramSnapshot,
    eager::{Eager, Value},
    expr::Held,
    transaction::{Transaction, Within},
};
use crate::{
    BlockId, Content, DType, Describe, Dims, Error, ErrorKind, Meta, Name, Op, OpDesc, OpInfoMap, Program,
    Result, Role, Site, Tensor, Var, VarDesc, Words, desc::check_name,
};

/// A program in the making, and the start-up program that initialises what it keeps. Or no program at all:
/// [`Builder::eager`] makes one whose expressions are computed at once.
///
/// A `Builder` is a handle: clones build the same program.
///
/// ```
/// use autobwd::{Builder, DType};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 4])?;
/// assert_eq!(x.to_string(), "x: float32 [-1, 4]");
/// let e = net.input("x", DType::F32, &[4]).unwrap_err();
/// assert_eq!(e.to_string(), "the program has a variable `x` already");
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone)]
pub struct Builder(Rc<Inner>);

struct Inner {
    /// Borrowed for a moment only, never while code of others runs; shared with the snapshots that are still around.
    program: RefCell<Rc<Program>>,
    /// Where operators go.
    block: Cell<BlockId>,
    /// How often the program has been replaced as a whole.
    replaced: Cell<usize>,
    ops: Option<Rc<OpInfoMap>>,
    startup: Option<Builder>,
    eager: Option<Eager>,
    /// How many layers there are, by prefix of their names.
    layers: RefCell<HashMap<String, usize>>,
}

impl Inner {
    fn new(ops: Option<Rc<OpInfoMap>>, startup: Option<Builder>, eager: Option<Eager>) -> Inner {
        let (program, block, replaced) = (RefCell::default(), Cell::new(BlockId::ROOT), Cell::new(0));
        Inner { program, block, replaced, ops, startup, eager, layers: RefCell::default() }
    }
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl Builder {
    /// An empty program over the operators that this binary links.
    pub fn new() -> Builder {
        Builder::with(None)
    }

    /// An empty program over these operators.
    pub fn with_ops(ops: OpInfoMap) -> Builder {
        Builder::with(Some(Rc::new(ops)))
    }

    fn with(ops: Option<Rc<OpInfoMap>>) -> Builder {
        let new = |ops, startup| Builder(Rc::new(Inner::new(ops, startup, None)));
        let startup = new(ops.clone(), None);
        new(ops, Some(startup))
    }

    pub(crate) fn of_eager(eager: Eager, ops: Option<OpInfoMap>) -> Builder {
        Builder(Rc::new(Inner::new(ops.map(Rc::new), None, Some(eager))))
    }

    /// What computes its expressions at once, if it is no program that they are for.
    pub(crate) fn eager_part(&self) -> Option<&Eager> {
        self.0.eager.as_ref()
    }

    /// Whether both are parts of the same program, or the same engine.
    pub(crate) fn is(&self, other: &Builder) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Whether expressions are computed at once.
    pub fn is_eager(&self) -> bool {
        self.0.eager.is_some()
    }

    pub(crate) fn ops(&self) -> Result<&OpInfoMap> {
        match &self.0.ops {
            Some(ops) => Ok(ops),
            None => OpInfoMap::linked(),
        }
    }

    /// The program that initialises parameters and other values that are kept. Run it once, before the program itself.
    pub fn startup(&self) -> Builder {
        self.0.startup.as_ref().unwrap_or(self).clone()
    }

    /// The program so far. Where expressions are computed at once, it knows names, but has no operators.
    pub fn program(&self) -> ProgramSnapshot {
        ProgramSnapshot(self.0.program.borrow().clone())
    }

    /// Changes the program by hand. The closure works on a copy, which replaces the program when the closure succeeds;
    /// meanwhile, the builder shows the program as it was.
    ///
    /// ```
    /// use autobwd::{Builder, DType, append_backward, Backward};
    /// use autobwd_ops::Math;
    /// let net = Builder::new();
    /// let loss = net.parameter("w", DType::F32, &[2], |_| Ok(()))?.mean()?;
    /// net.edit(|program| append_backward(program, &loss.name(), &Backward::default()))?;
    /// assert!(net.expr("w@GRAD").is_ok());
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the closure; a closure that also changes the program through its builder. The copy is then dropped.
    pub fn edit<T>(&self, edit: impl FnOnce(&mut Program) -> Result<T>) -> Result<T> {
        let before = self.program();
        let mut program = (*before).clone();
        let outcome = edit(&mut program)?;
        if !Rc::ptr_eq(&before.0, &self.0.program.borrow()) {
            let text = "the program was changed through its builder while `edit` changed a copy of it";
            return Err(Error::new(ErrorKind::Program, text));
        }
        self.set_program(program);
        Ok(outcome)
    }

    /// Replaces the program. Variables of the old one keep their meaning where the new one has the same names in the same
    /// order, as a changed clone does.
    pub fn set_program(&self, program: Program) {
        self.0.replaced.update(|count| count + 1);
        *self.0.program.borrow_mut() = Rc::new(program);
    }

    /// Changes the program in place, or a copy of it where a snapshot is still around. The closure calls no code of others.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Program) -> T) -> T {
        change(Rc::make_mut(&mut self.0.program.borrow_mut()))
    }

    /// From here on, all that is added to the program is taken back unless it is committed: for what adds several things
    /// and may fail on the way.
    pub fn transaction(&self) -> Transaction {
        Transaction::new(self)
    }

    pub(super) fn times_replaced(&self) -> usize {
        self.0.replaced.get()
    }

    pub(super) fn own_startup(&self) -> Option<&Builder> {
        self.0.startup.as_ref()
    }

    /// Has operators go to another block, and returns the one before.
    pub(super) fn go_to(&self, block: BlockId) -> BlockId {
        self.0.block.replace(block)
    }

    /// The block that operators go to.
    pub fn block(&self) -> BlockId {
        self.0.block.get()
    }

    /// Has operators go to a new block within the present one, while `body` runs: for operators that run sub-blocks.
    ///
    /// # Errors
    /// Those of `body`; a parameter that it overwrites; expressions that are computed at once.
    #[track_caller]
    pub fn sub_block<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<(BlockId, T)> {
        if self.is_eager() {
            let text = "only a program has sub-blocks";
            return Err(Error::new(ErrorKind::Program, text));
        }
        let (around, at) = (self.block(), Location::caller());
        let transaction = self.transaction();
        let block = self.change(|program| program.add_block(Some(around), None));
        let outcome = self.within(block, body).and_then(|found| {
            let program = self.program();
            let all = program.overwritten(block);
            program.lost_writes(block, &all).into_iter().try_for_each(Err)?;
            Ok(found)
        });
        if outcome.is_ok() {
            transaction.commit();
        }
        let place =
            || format!("block {} in block {}, at {}:{}", block.index(), around.index(), at.file(), at.line());
        outcome.map(|found| (block, found)).map_err(|e| e.within(place))
    }

    /// Has operators go to that block while `body` runs.
    pub fn within<T>(&self, block: BlockId, body: impl FnOnce() -> T) -> T {
        let _within = Within::new(self, block);
        body()
    }

    /// A new variable of a block, `prefix_0`, …, for an operator to write.
    pub fn variable(&self, block: BlockId, prefix: &str, desc: VarDesc) -> Expr {
        let var = self.change(|program| {
            let var = program.fresh(prefix);
            program.block_mut(block).map(|block| block.vars.insert(var, desc));
            var
        });
        Expr::of_var(self, var)
    }

    /// A copy of a variable that no gradient flows through.
    #[track_caller]
    pub(super) fn constant_copy(&self, var: Var) -> Expr {
        let (block, at) = (self.block(), Location::caller());
        let copy = self.change(|program| {
            let desc =
                program.lookup(block, var).cloned().unwrap_or(VarDesc::data(DType::F32, Dims::default()));
            let desc = VarDesc { stop_gradient: true, ..VarDesc::of(desc.meta()) };
            let copy = program.fresh("assign");
            if let Some(block) = program.block_mut(block) {
                block.vars.insert(copy, desc);
                let assign = OpDesc::new("assign").input("X", [var]).output("Out", [copy]);
                block.ops.push(OpDesc { site: Some(Site::Here(at)), ..assign });
            }
            copy
        });
        Expr::of_var(self, copy)
    }

    /// Declares a variable in a block, too: there it is something else.
    pub fn declare_in(&self, block: BlockId, var: &Expr, desc: VarDesc) {
        self.change(|program| program.block_mut(block).map(|block| block.vars.insert(var.var(), desc)));
    }

    /// A variable of the program as an expression.
    pub fn existing(&self, var: Var) -> Expr {
        Expr::of_var(self, var)
    }

    /// The variable of that name as an expression.
    ///
    /// # Errors
    /// There is none; near names are offered.
    pub fn expr(&self, name: &str) -> Result<Expr> {
        let var = self.program().expect_var(name)?;
        let Some(eager) = &self.0.eager else { return Ok(Expr::of_var(self, var)) };
        let value = eager.kept.borrow().get(&var).cloned();
        let unknown = || Error::new(ErrorKind::UnknownVar, format!("`{name}` has no value"));
        Ok(Expr::of_value(self, value.ok_or_else(unknown)?))
    }

    fn declare(&self, name: &str, desc: VarDesc) -> Result<Var> {
        check_name(name)?;
        self.change(|program| {
            let var = program.var(name);
            if program.root().vars.contains_key(&var) {
                return Err(Error::new(
                    ErrorKind::UnknownVar,
                    format!("the program has a variable `{name}` already"),
                ));
            }
            program.root_mut().vars.insert(var, desc);
            Ok(var)
        })
    }

    /// Data to be fed; −1 stands for a dimension that may differ from run to run.
    ///
    /// # Errors
    /// A taken name; a dimension below −1; expressions that are computed at once, for which data is there from the start
    /// ([`Builder::constant`]).
    pub fn input(&self, name: &str, dtype: DType, dims: &[i64]) -> Result<Expr> {
        if self.is_eager() {
            let text =
                format!("`{name}` cannot be fed later: expressions are computed at once; use `constant`");
            return Err(Error::new(ErrorKind::Feed, text));
        }
        Ok(Expr::of_var(self, self.declare(name, VarDesc::data(dtype, Dims::from_wire(dims)?))?))
    }

    /// A parameter, to be trained. `init` gets it as a variable of the start-up program and appends there what gives it
    /// its first value; where expressions are computed at once, that happens here and now.
    ///
    /// # Errors
    /// A taken name, and those of `init`.
    pub fn parameter(
        &self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        init: impl FnOnce(&Expr) -> Result<()>,
    ) -> Result<Expr> {
        self.kept(name, VarDesc::parameter(dtype, dims.into()), init)
    }

    /// A value that is kept between runs without being trained; otherwise as [`parameter`](Builder::parameter).
    ///
    /// # Errors
    /// As there.
    pub fn persistable(
        &self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        init: impl FnOnce(&Expr) -> Result<()>,
    ) -> Result<Expr> {
        let desc = VarDesc { persistable: true, ..VarDesc::data(dtype, dims.into()) };
        self.kept(name, desc, init)
    }

    fn kept(&self, name: &str, desc: VarDesc, init: impl FnOnce(&Expr) -> Result<()>) -> Result<Expr> {
        let transaction = self.transaction();
        let var = self.declare(name, desc.clone())?;
        let kept = match &self.0.eager {
            Some(eager) => {
                let zeros = Tensor::zeros(desc.dtype, &desc.dims.known().unwrap_or_default())?;
                let kept = Expr::of_value(self, eager.keep(var, name.into(), zeros, desc.parameter));
                init(&kept)?;
                kept
            }
            None => {
                if let Some(startup) = &self.0.startup {
                    init(&Expr::of_var(startup, startup.declare(name, desc)?))?;
                }
                Expr::of_var(self, var)
            }
        };
        transaction.commit();
        Ok(kept)
    }

    /// A name for a layer, whose variables are called `name.part`: `prefix_0`, `prefix_1`, …, counted by the layers of that
    /// prefix alone. So parameters have the same names in a program and in eager mode, whatever was computed before.
    pub fn layer_name(&self, prefix: &str) -> String {
        let layers = &mut self.0.layers.borrow_mut();
        let count = layers.entry(prefix.into()).or_insert(0);
        *count += 1;
        format!("{prefix}_{}", *count - 1)
    }

    /// A name that the program does not have yet: `prefix_0`, `prefix_1`, ….
    pub fn unique(&self, prefix: &str) -> String {
        self.change(|program| {
            let var = program.fresh(prefix);
            program.name(var).to_string()
        })
    }

    /// Appends an operator that has no input to say which program it belongs to; otherwise as [`emit`].
    ///
    /// # Errors
    /// As [`emit`].
    #[track_caller]
    pub fn emit<D: Describe<Arg>>(&self, op: D) -> Result<<D::Op as Op>::Of<Expr>> {
        let mut content = Content::new(<D::Op as Op>::SCHEMA.name, false);
        let left = op.hand_over(&mut content);
        self.append::<D::Op>(&mut content, left, Location::caller())
    }

    fn append<O: Op>(
        &self,
        content: &mut Content<Arg>,
        left: O::Of<()>,
        at: &'static Location<'static>,
    ) -> Result<O::Of<Expr>> {
        let mut left = Some(left);
        self.append_args(&mut content.held, &mut content.notes.words, at, &mut || {
            let mut content = Content::new(O::SCHEMA.name, true);
            left = left.take().map(|left| left.hand_over(&mut content));
            content.describe_in_order()
        })?;
        let left = left.ok_or_else(|| Error::internal("an operator lost its slots"))?;
        let mut made = content.held.iter_mut().filter_map(|(.., arg)| arg.take()?.expr());
        Ok(O::fill(left, &mut || made.next().unwrap_or_else(|| Expr::of_var(self, Var::EMPTY))))
    }

    /// Appends an operator, or computes it at once, and replaces what is new among its arguments by what that has become.
    /// `words` are those of the operator, `desc` describes it, with variable k + 1 for the k-th argument, holes apart.
    pub(crate) fn append_args(
        &self,
        args: &mut OpArgs,
        words: &mut Words,
        at: &'static Location<'static>,
        desc: MakeDesc<'_>,
    ) -> Result<()> {
        match &self.0.eager {
            Some(eager) => self.compute(eager, args, words, at, desc),
            None => self.describe(args, at, desc()?),
        }
    }

    fn compute(
        &self,
        eager: &Eager,
        args: &mut OpArgs,
        words: &mut Words,
        at: &'static Location<'static>,
        desc: MakeDesc<'_>,
    ) -> Result<()> {
        let (mut inputs, mut into, mut outputs) = (SmallVec::<[_; 3]>::new(), SmallVec::<[_; 1]>::new(), 0);
        for (role, slot, arg) in args.iter() {
            match (role, arg) {
                (Role::Input, Some(Arg::New)) => return Err(not_there(desc()?.ty, slot)),
                (Role::Input, Some(Arg::Is(Expr { held: Held::Value(value), .. }))) => inputs.push(value),
                (Role::Output, Some(Arg::Is(Expr { held: Held::Value(value), .. }))) => {
                    into.push((outputs, value))
                }
                (_, Some(Arg::Is(_))) => return Err(two_programs(desc()?.ty, at)),
                (_, Some(Arg::New) | None) => {}
            }
            outputs += usize::from(*role == Role::Output && arg.is_some());
        }
        let node = eager.call(self, words, desc, &inputs, &into, at)?;
        drop((inputs, into));
        let mut node = Some(node);
        let made = args.iter_mut().filter(|(role, _, arg)| *role == Role::Output && arg.is_some());
        for (out, (.., arg)) in made.enumerate() {
            // The last one needs no copy.
            let node = if out + 1 == outputs { node.take() } else { node.clone() };
            if let (Some(Arg::New), Some(node)) = (&arg, node) {
                *arg = Some(Arg::Is(Expr::of_value(self, Value::of(node, out))));
            }
        }
        Ok(())
    }

    fn describe(&self, args: &mut OpArgs, at: &'static Location<'static>, mut desc: OpDesc) -> Result<()> {
        let info = self.ops()?.get(&desc.ty)?;
        let block = self.block();
        let (mut vars, mut new) = (vec![], vec![]);
        for (role, slot, arg) in args.iter_mut() {
            let Some(arg) = arg else { continue };
            vars.push(match arg {
                Arg::New if *role == Role::Input => return Err(not_there(desc.ty, slot)),
                Arg::New => {
                    new.push(self.change(|program| program.fresh(&desc.ty)));
                    new[new.len() - 1]
                }
                Arg::Is(Expr { builder, held: Held::Var(var) }) if builder.is(self) => *var,
                Arg::Is(_) => return Err(two_programs(desc.ty, at)),
            });
        }
        let stand_ins = desc.inputs.args_mut().chain(desc.outputs.args_mut());
        stand_ins.filter(|v| **v != Var::EMPTY).for_each(|v| *v = vars[v.index() - 1]);
        desc.site = Some(Site::Here(at));

        // A snapshot: shape rules are code of others.
        let program = self.program();
        let index = program.block(block).map_or(0, |block| block.ops.len());
        let mut metas: Vec<(Var, Meta)> = vec![];
        let outcome = info.check(&desc).and_then(|()| {
            let of = |var: Var| match program.lookup(block, var) {
                Some(known) => Ok(known.meta()),
                None => {
                    let text = format!("`{}` is no variable of block {}", program.name(var), block.index());
                    Err(Error::new(ErrorKind::UnknownVar, text))
                }
            };
            info.infer(&desc, &of, &mut |var, meta| metas.push((var, meta)))
        });
        outcome
            .and_then(|()| program.check_declared(block, &metas))
            .map_err(|e| e.at_op(|| program.describe_op(block, index, &desc)))?;
        drop(program);
        let added = self.change(|program| {
            let block = program.block_mut(block)?;
            // Fresh variables have ascending numbers.
            for (var, meta) in metas.into_iter().filter(|(var, _)| new.binary_search(var).is_ok()) {
                let stop_gradient = !meta.dtype.is_float();
                block.vars.insert(var, VarDesc { stop_gradient, ..VarDesc::of(meta) });
            }
            block.ops.push(desc);
            Some(())
        });
        added.ok_or_else(|| Error::internal("no such block"))?;
        for (var, arg) in vars.into_iter().zip(args.iter_mut().filter_map(|(.., arg)| arg.as_mut())) {
            *arg = Arg::Is(Expr::of_var(self, var));
        }
        Ok(())
    }
}

fn not_there(ty: Name, slot: &str) -> Error {
    let text = format!("operator `{ty}`, input `{slot}`: an input is a variable that exists");
    Error::new(ErrorKind::Slot, text)
}

fn two_programs(ty: Name, at: &'static Location<'static>) -> Error {
    let at = Site::Here(at);
    let text = format!("operator `{ty}`, added at {at}: expressions of two programs");
    Error::new(ErrorKind::UnknownVar, text)
}

/// What the slots of an operator hold, in the order in which it describes them; `None` is a hole.
pub(crate) type OpArgs = SmallVec<[(Role, &'static str, Option<Arg>); 4]>;

/// Describes an operator when that is needed.
pub(crate) type MakeDesc<'a> = &'a mut dyn FnMut() -> Result<OpDesc>;

/// Appends an operator to the program of its inputs, or computes it at once where these are values, and returns it with
/// its outputs filled in.
///
/// ```
/// # use autobwd::{Builder, DType};
/// use autobwd::{Arg, New, emit};
/// use autobwd_ops::activation::Relu;
/// # let x = Builder::new().input("x", DType::F32, &[4])?;
/// let out = emit(Relu { x: Arg::from(&x), out: New })?.out;
/// # assert_eq!(out.name(), "relu_0");
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// An unknown operator, attributes out of bounds, inputs whose dtypes or shapes do not fit: each with operator, slots,
/// variables and the line of the call.
#[track_caller]
#[inline]
pub fn emit<D: Describe<Arg>>(op: D) -> Result<<D::Op as Op>::Of<Expr>> {
    let at = Location::caller();
    let name = <D::Op as Op>::SCHEMA.name;
    let mut content = Content::new(name, false);
    let left = op.hand_over(&mut content);
    builder_of(name, &content.held)?.append::<D::Op>(&mut content, left, at)
}

/// The builder to which an operator with these arguments belongs.
fn builder_of(name: &'static str, args: &OpArgs) -> Result<Builder> {
    let builder = args.iter().find_map(|(.., arg)| match arg {
        Some(Arg::Is(expr)) => Some(expr.builder.clone()),
        _ => None,
    });
    builder.ok_or_else(|| match args.iter().find(|(role, ..)| *role == Role::Input) {
        Some((_, slot, _)) => not_there(name.into(), slot),
        None => {
            let text = format!("operator `{name}` has no input to say where it belongs; use `Builder::emit`");
            Error::new(ErrorKind::Slot, text)
        }
    })
}
