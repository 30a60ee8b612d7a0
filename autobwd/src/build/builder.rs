use std::{
    cell::{Ref, RefCell},
    fmt,
    panic::Location,
    rc::Rc,
};

use crate::{
    BlockId, DType, Describe, Dims, Error, ErrorKind, Meta, Op, OpDesc, OpInfoMap, Program, Result, Role,
    Site, Var, VarDesc,
};

/// A program in the making, and the start-up program that initialises what it keeps.
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
pub struct Builder {
    state: Rc<RefCell<State>>,
    startup: Option<Rc<Builder>>,
}

struct State {
    program: Program,
    ops: Option<Rc<OpInfoMap>>,
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
        let new = |ops| Rc::new(RefCell::new(State { program: Program::new(), ops }));
        let startup = Builder { state: new(ops.clone()), startup: None };
        Builder { state: new(ops), startup: Some(Rc::new(startup)) }
    }

    /// The program that initialises parameters and other values that are kept. Run it once, before the program itself.
    pub fn startup(&self) -> Builder {
        self.startup.as_deref().unwrap_or(self).clone()
    }

    /// The program so far.
    pub fn program(&self) -> Ref<'_, Program> {
        Ref::map(self.state.borrow(), |s| &s.program)
    }

    /// Changes the program by hand.
    pub fn edit<T>(&self, edit: impl FnOnce(&mut Program) -> T) -> T {
        edit(&mut self.state.borrow_mut().program)
    }

    /// The variable of that name as an expression.
    ///
    /// # Errors
    /// There is none; near names are offered.
    pub fn expr(&self, name: &str) -> Result<Expr> {
        let var = self.program().expect_var(name)?;
        Ok(Expr { builder: self.clone(), var })
    }

    fn declare(&self, name: &str, desc: VarDesc) -> Result<Expr> {
        let program = &mut self.state.borrow_mut().program;
        if name.is_empty() || name.contains('@') || name.contains(char::is_whitespace) {
            let text =
                format!("{name:?} cannot be a variable: names are not empty and have neither `@` nor spaces");
            return Err(Error::new(ErrorKind::UnknownVar, text));
        }
        let var = program.var(name);
        if program.root().vars.contains_key(&var) {
            return Err(Error::new(
                ErrorKind::UnknownVar,
                format!("the program has a variable `{name}` already"),
            ));
        }
        program.root_mut().vars.insert(var, desc);
        Ok(Expr { builder: self.clone(), var })
    }

    /// Data to be fed; −1 stands for a dimension that may differ from run to run.
    ///
    /// # Errors
    /// A taken name; a dimension below −1.
    pub fn input(&self, name: &str, dtype: DType, dims: &[i64]) -> Result<Expr> {
        self.declare(name, VarDesc::data(dtype, Dims::from_wire(dims)?))
    }

    /// A parameter, to be trained. `init` gets it as a variable of the start-up program and appends there what gives it
    /// its first value.
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
        let expr = self.declare(name, desc.clone())?;
        if self.startup.is_some() {
            init(&self.startup().declare(name, desc)?)?;
        }
        Ok(expr)
    }

    /// A name that the program does not have yet: `prefix_0`, `prefix_1`, ….
    pub fn unique(&self, prefix: &str) -> String {
        self.edit(|program| {
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
        let (desc, args) = take_args(op)?;
        self.append::<D::Op>(desc, args, Location::caller())
    }

    fn append<O: Op>(
        &self,
        desc: OpDesc,
        args: Vec<Arg>,
        at: &'static Location<'static>,
    ) -> Result<O::Of<Expr>> {
        let desc = self.append_desc(desc, args, at)?;
        O::gather(&desc, &mut |_, _, var| Ok(Expr { builder: self.clone(), var }))
    }

    /// Appends `desc`, in which variable k stands for `args[k]`.
    pub(super) fn append_desc(
        &self,
        mut desc: OpDesc,
        args: Vec<Arg>,
        at: &'static Location<'static>,
    ) -> Result<OpDesc> {
        let ops = self.state.borrow().ops.clone();
        let info = match &ops {
            Some(ops) => ops.get(&desc.ty)?,
            None => OpInfoMap::linked()?.get(&desc.ty)?,
        };
        let program = &mut self.state.borrow_mut().program;
        let mut vars = vec![];
        for arg in args {
            vars.push(match arg {
                Arg::New => None,
                Arg::Is(expr) if Rc::ptr_eq(&expr.builder.state, &self.state) => Some(expr.var),
                Arg::Is(_) => {
                    let text = format!(
                        "operator `{}`, added at {}: expressions of two programs",
                        desc.ty,
                        Site::Here(at)
                    );
                    return Err(Error::new(ErrorKind::UnknownVar, text));
                }
            });
        }
        let fresh: Vec<bool> = vars.iter().map(Option::is_none).collect();
        let vars: Vec<Var> = vars.into_iter().map(|v| v.unwrap_or_else(|| program.fresh(&desc.ty))).collect();
        let mut new = vec![];
        for (var, fresh) in vars.iter().zip(fresh) {
            if fresh {
                new.push(*var);
            }
        }
        let stand_ins = desc.inputs.args_mut().chain(desc.outputs.args_mut());
        stand_ins.filter(|v| **v != Var::EMPTY).for_each(|v| *v = vars[v.index() - 1]);
        desc.site = Some(Site::Here(at));

        let index = program.root().ops.len();
        let mut metas: Vec<(Var, Meta)> = vec![];
        let outcome = info.check(&desc).and_then(|()| {
            let of = |var: Var| match program.lookup(BlockId::ROOT, var) {
                Some(known) => Ok(known.meta()),
                None => {
                    Err(Error::new(ErrorKind::UnknownVar, format!("`{}` is no variable", program.name(var))))
                }
            };
            info.infer(&desc, &of, &mut |var, meta| metas.push((var, meta)))
        });
        outcome
            .and_then(|()| check_declared(program, &metas))
            .map_err(|e| e.at_op(|| program.describe_op(BlockId::ROOT, index, &desc)))?;
        let root = program.root_mut();
        for (var, meta) in metas {
            if new.contains(&var) {
                let stop_gradient = !meta.dtype.is_float();
                root.vars.insert(var, VarDesc { stop_gradient, ..VarDesc::of(meta) });
            }
        }
        root.ops.push(desc.clone());
        Ok(desc)
    }
}

/// Outputs that exist already must be able to hold what the operator writes.
fn check_declared(program: &Program, metas: &[(Var, Meta)]) -> Result<()> {
    for (var, meta) in metas {
        if let Some(known) = program.lookup(BlockId::ROOT, *var).map(VarDesc::meta)
            && !known.agrees(meta)
        {
            let name = program.name(*var);
            let text = format!("`{}` is {meta}, but `{name}` is {known}", meta.slot());
            return Err(Error::new(ErrorKind::Shape, text));
        }
    }
    Ok(())
}

/// What the slots of an operator hold that is handed to [`emit`].
pub enum Arg {
    /// A new variable, for an output.
    New,
    /// That variable.
    Is(Expr),
}
impl From<&Expr> for Arg {
    fn from(expr: &Expr) -> Arg {
        Arg::Is(expr.clone())
    }
}
impl From<Expr> for Arg {
    fn from(expr: Expr) -> Arg {
        Arg::Is(expr)
    }
}

/// Replaces what the slots hold by stand-ins: variable k + 1 for the k-th argument.
fn take_args<D: Describe<Arg>>(op: D) -> Result<(OpDesc, Vec<Arg>)> {
    let mut args = vec![];
    let desc = op.describe(&mut |role, slot, arg| {
        if role == Role::Input && matches!(arg, Arg::New) {
            let name = <D::Op as Op>::SCHEMA.name;
            let text = format!("operator `{name}`, input `{slot}`: an input is a variable that exists");
            return Err(Error::new(ErrorKind::Slot, text));
        }
        args.push(arg);
        Ok(Var::stand_in(args.len()))
    })?;
    Ok((desc, args))
}

/// Appends an operator to the program of its inputs and returns it with its outputs filled in.
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
pub fn emit<D: Describe<Arg>>(op: D) -> Result<<D::Op as Op>::Of<Expr>> {
    let at = Location::caller();
    let (desc, args) = take_args(op)?;
    let builder = args.iter().find_map(|arg| match arg {
        Arg::Is(expr) => Some(expr.builder.clone()),
        Arg::New => None,
    });
    let builder = builder.ok_or_else(|| {
        let text =
            format!("operator `{}` has no input to say where it belongs; use `Builder::emit`", desc.ty);
        Error::new(ErrorKind::Slot, text)
    })?;
    builder.append::<D::Op>(desc, args, at)
}

/// A variable of a program in the making.
#[derive(Clone)]
pub struct Expr {
    pub(super) builder: Builder,
    pub(super) var: Var,
}

impl Expr {
    /// The program it belongs to.
    pub fn builder(&self) -> &Builder {
        &self.builder
    }

    /// The variable.
    pub fn var(&self) -> Var {
        self.var
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.builder.program().name(self.var).to_string()
    }

    /// Dtype and dimensions, −1 where unknown.
    pub fn meta(&self) -> Meta {
        let known = self.builder.program().root().vars.get(&self.var).map(VarDesc::meta);
        // Every expression is declared when it is made; only `Builder::edit` can take that away.
        known.unwrap_or_else(|| Meta::new(DType::F32, []))
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.meta().dtype
    }

    /// Dimensions, −1 where unknown.
    pub fn dims(&self) -> Dims {
        self.meta().dims
    }

    /// Lets no gradient flow into or through this variable.
    #[must_use]
    pub fn stop_gradient(self) -> Expr {
        self.builder.edit(|program| {
            if let Some(desc) = program.root_mut().vars.get_mut(&self.var) {
                desc.stop_gradient = true;
            }
        });
        self
    }
}
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.meta())
    }
}
impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
