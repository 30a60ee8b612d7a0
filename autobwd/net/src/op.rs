//! `NamedOp`: a single operator with variable names in its slots.

use std::{collections::BTreeMap, fmt, panic::Location};

use autobwd_core::{
    __private::internals::*, Attr, AttrMap, Describe, Error, ErrorKind, Name, Op, OpContext, OpDesc, OpInfo,
    OpInfoMap, Program, Result, Site, Var,
};

/// The placeholder for a missing variable in a list of names.
const EMPTY: &str = "@EMPTY@";

/// A registered operator: its type, the names of variables in its slots, and its attributes.
///
/// ```
/// use autobwd::{Attr, net::NamedOp};
/// use autobwd_ops::activation::Scale;
///
/// let double = NamedOp::of(Scale { x: "x", out: "y", scale: 2.0, bias: 0.0, bias_after_scale: true });
/// assert_eq!(double.to_string(), "y = scale(X=x, bias=0.0, bias_after_scale=true, scale=2.0)");
/// // The same from names alone; `Operator::verify` checks them.
/// let double = NamedOp::new("scale").input("X", ["x"]).output("Out", ["y"]).attr("scale", Attr::F32(2.0));
/// assert_eq!(double.to_string(), "y = scale(X=x, scale=2.0)");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NamedOp {
    /// Operator type, as registered.
    pub ty: Name,
    /// Names in its input slots.
    pub inputs: BTreeMap<Name, Vec<String>>,
    /// Names in its output slots.
    pub outputs: BTreeMap<Name, Vec<String>>,
    /// Attributes.
    pub attrs: AttrMap,
    /// The source line that made it; gradient operators have that of their forward operator.
    pub site: Option<Site>,
}

impl NamedOp {
    /// An operator of that type with empty slots.
    #[track_caller]
    pub fn new(ty: impl Into<Name>) -> NamedOp {
        let site = Some(Site::Here(Location::caller()));
        NamedOp {
            ty: ty.into(),
            inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
            attrs: AttrMap::default(),
            site,
        }
    }

    /// Converts an operator's struct with names in its slots.
    #[track_caller]
    pub fn of<W: Into<String>, D: Describe<W>>(op: D) -> NamedOp {
        let mut names = Program::new();
        let described = op.describe(&mut |_, _, name| Ok(names.var(&name.into())));
        // The only fallible step is the closure above, which never fails.
        let desc = described.unwrap_or_else(|_| OpDesc::new(D::Op::SCHEMA.name));
        let site = Some(Site::Here(Location::caller()));
        NamedOp::from_desc(&OpDesc { site, ..desc }, &names)
    }

    /// Sets the names in an input slot.
    #[must_use]
    pub fn input(
        mut self,
        slot: impl Into<Name>,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> NamedOp {
        self.inputs.insert(slot.into(), names.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the names in an output slot.
    #[must_use]
    pub fn output(
        mut self,
        slot: impl Into<Name>,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> NamedOp {
        self.outputs.insert(slot.into(), names.into_iter().map(Into::into).collect());
        self
    }

    /// Sets an attribute.
    #[must_use]
    pub fn attr(mut self, name: impl Into<Name>, value: Attr) -> NamedOp {
        self.attrs.set(name, value);
        self
    }

    /// All variables it reads, slot by slot.
    pub fn reads(&self) -> impl Iterator<Item = &str> {
        self.inputs.values().flatten().map(String::as_str).filter(|name| *name != EMPTY)
    }

    /// All variables it writes, slot by slot.
    pub fn writes(&self) -> impl Iterator<Item = &str> {
        self.outputs.values().flatten().map(String::as_str).filter(|name| *name != EMPTY)
    }

    /// The operator on the variables that `var` returns for names.
    pub(super) fn desc(&self, var: &mut dyn FnMut(&str) -> Var) -> OpDesc {
        let mut desc = OpDesc { attrs: self.attrs.clone(), site: self.site, ..OpDesc::new(self.ty) };
        let mut vars = |names: &[String]| -> Vec<Var> {
            names.iter().map(|name| if name == EMPTY { Var::EMPTY } else { var(name) }).collect()
        };
        for (slot, names) in &self.inputs {
            desc.inputs.set(*slot, vars(names));
        }
        for (slot, names) in &self.outputs {
            desc.outputs.set(*slot, vars(names));
        }
        desc
    }

    pub(super) fn from_desc(desc: &OpDesc, names: &Program) -> NamedOp {
        let texts = |vars: &[Var]| vars.iter().map(|var| names.name(*var).to_string()).collect();
        NamedOp {
            ty: desc.ty,
            inputs: desc.inputs.iter().map(|(slot, vars)| (slot, texts(vars))).collect(),
            outputs: desc.outputs.iter().map(|(slot, vars)| (slot, texts(vars))).collect(),
            attrs: desc.attrs.clone(),
            site: desc.site,
        }
    }

    /// Its registry entry.
    ///
    /// # Errors
    /// An unknown operator; slots or attributes that differ from the declaration.
    pub(super) fn info(&self, ops: &OpInfoMap) -> Result<&'static OpInfo> {
        let info = ops.get(&self.ty)?;
        let mut names = Program::new();
        let desc = self.desc(&mut |name| names.var(name));
        if desc.attrs.blocks().next().is_some() {
            let text = "nets have no blocks: use a program for this operator";
            return Err(Error::new(ErrorKind::Attr, text));
        }
        info.check(&desc)?;
        let mut written = vec![];
        for name in self.writes() {
            if written.contains(&name) {
                return Err(Error::new(ErrorKind::Slot, format!("`{name}` is written to twice")));
            }
            written.push(name);
        }
        Ok(info)
    }

    /// Its description in messages: `` operator `mul` (in a net, added at model.rs:12; X = `h`, Y = `w`) ``.
    pub(super) fn describe(&self) -> OpContext {
        let mut names = Program::new();
        let desc = self.desc(&mut |name| names.var(name));
        names.describe_at("in a net", &desc)
    }
}
impl fmt::Display for NamedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Program::new();
        let desc = self.desc(&mut |name| names.var(name));
        names.op_text(&desc).fmt(f)
    }
}
