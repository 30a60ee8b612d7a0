//! Inputs, parameters and other values that a program keeps.

use super::Builder;
use crate::{
    DType, Dims, Error, ErrorKind, Expr, Result, Tensor, Var, VarDesc,
    desc::check_name,
    graph_builder::value::{SourceValue, Value},
};

impl Builder {
    fn declare(&self, name: &str, desc: VarDesc) -> Result<Var> {
        check_name(name)?;
        self.change(|program| {
            let var = program.var(name);
            if program.root().vars.contains_key(&var) {
                let hint = match desc.persistable {
                    true => "; give its layer another name, or build it in a name scope",
                    false => "",
                };
                let text = format!("the program has a variable `{name}` already{hint}");
                return Err(Error::new(ErrorKind::UnknownVar, text));
            }
            program.root_mut().vars.insert(var, desc);
            Ok(var)
        })
    }

    /// Data to be fed; −1 stands for a dimension that may differ from run to run.
    ///
    /// Fails for a name in use and for a dimension below −1. It also fails in eager mode, where data is available from
    /// the start: use [`Builder::constant`].
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, dims: &[i64]) -> Expr {
        match Dims::from_wire(dims) {
            Ok(dims) => self.input_with_dims(name, dtype, dims),
            Err(e) => self.failed(e),
        }
    }

    /// Data to be fed, with dimensions that may have names: shape rules compute with a name, and feeds agree about it.
    ///
    /// Fails for a name in use, and in eager mode.
    ///
    /// ```
    /// use autobwd::{Builder, DType, tensor::Dim};
    /// use autobwd_ops::{Math, concat};
    ///
    /// let net = Builder::new();
    /// let (batch, length) = (Dim::named("B"), Dim::named("T"));
    /// let x = net.input_with_dims("x", DType::F32, vec![batch, length, 4.into()]);
    /// let y = concat(&[&x, &x], 1).transpose(&[0, 2, 1]).flatten(1, 2);
    /// assert_eq!(y.dims().to_string(), "[B, T*8]");
    /// ```
    #[track_caller]
    pub fn input_with_dims(&self, name: &str, dtype: DType, dims: impl Into<Dims>) -> Expr {
        if self.is_eager() {
            let text = format!(
                "`{name}` cannot be fed later: an eager builder computes immediately; use `constant`"
            );
            return self.failed(Error::new(ErrorKind::Feed, text));
        }
        match self.declare(name, VarDesc::data(dtype, dims.into())) {
            Ok(var) => Expr::of_var(self, var),
            Err(e) => self.failed(e),
        }
    }

    /// A trainable parameter. `init` receives it as a variable of the startup program, appends the operators that
    /// initialise it there, and returns the last result; in eager mode they run immediately. [`Expr::clone`] as `init`
    /// leaves it uninitialised.
    ///
    /// Fails for a name in use, and if the result of `init` has failed.
    #[track_caller]
    pub fn parameter(
        &self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        init: impl FnOnce(&Expr) -> Expr,
    ) -> Expr {
        self.persistable_var(name, VarDesc::parameter(dtype, dims.into()), init)
    }

    /// A value that is kept between runs but not trained; otherwise as [`parameter`](Builder::parameter).
    #[track_caller]
    pub fn persistable(
        &self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        init: impl FnOnce(&Expr) -> Expr,
    ) -> Expr {
        let desc = VarDesc { persistable: true, ..VarDesc::data(dtype, dims.into()) };
        self.persistable_var(name, desc, init)
    }

    /// As [`persistable`](Builder::persistable), but gradients pass through the operators that write the value, or are
    /// refused by them, instead of stopping at it.
    #[track_caller]
    pub fn persistable_with_gradient(
        &self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        init: impl FnOnce(&Expr) -> Expr,
    ) -> Expr {
        let desc = VarDesc { parameter: false, ..VarDesc::parameter(dtype, dims.into()) };
        self.persistable_var(name, desc, init)
    }

    #[track_caller]
    fn persistable_var(&self, name: &str, desc: VarDesc, init: impl FnOnce(&Expr) -> Expr) -> Expr {
        let transaction = self.transaction();
        match self.declare_kept(name, desc, init) {
            Ok(kept) => {
                transaction.commit();
                kept
            }
            Err(e) => self.failed(e),
        }
    }

    fn declare_kept(&self, name: &str, desc: VarDesc, init: impl FnOnce(&Expr) -> Expr) -> Result<Expr> {
        let var = self.declare(name, desc.clone())?;
        if !self.is_eager() {
            if let Some(startup) = &self.0.startup {
                init(&Expr::of_var(startup, startup.declare(name, desc)?)).check()?;
            }
            return Ok(Expr::of_var(self, var));
        }
        let zeros = Tensor::zeros(desc.dtype, &desc.dims.known().unwrap_or_default())?;
        let value = Value::from(SourceValue::new(name.into(), zeros, desc.parameter));
        self.0.values.borrow_mut().insert(var, value.clone());
        let kept = Expr::of_value(self, value);
        init(&kept).check()?;
        Ok(kept)
    }
}
