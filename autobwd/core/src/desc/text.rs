//! Programs as text: one line per variable that the program does not compute, one line per operator.

use std::{collections::HashSet, fmt};

use super::{Block, BlockId, OpDesc, Program, Var, VarDesc, VarKind};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops = self.blocks().iter().flat_map(|block| &block.ops);
        let run: HashSet<BlockId> = ops.flat_map(|op| op.attrs.blocks()).collect();
        for (index, block) in self.blocks().iter().enumerate() {
            let id = BlockId::new(index);
            // An empty block that no operator runs any more is not printed.
            if index == 0 || run.contains(&id) || !block.ops.is_empty() || !block.vars.is_empty() {
                self.write_block(f, id, block)?;
            }
        }
        Ok(())
    }
}

impl Program {
    fn write_block(&self, f: &mut fmt::Formatter<'_>, id: BlockId, block: &Block) -> fmt::Result {
        write!(f, "block {}", id.index())?;
        if let Some(parent) = block.parent {
            write!(f, " in block {}", parent.index())?;
        }
        if let Some(forward) = block.forward {
            write!(f, ", gradient of block {}", forward.index())?;
        }
        writeln!(f)?;
        let written: HashSet<Var> = block.ops.iter().flat_map(OpDesc::writes).collect();
        let given = |var: &Var, desc: &VarDesc| desc.persistable || !written.contains(var);
        for (var, desc) in block.vars.iter().filter(|(var, desc)| given(var, desc)) {
            writeln!(f, "  {} {}: {}", role(desc), self.name(*var), TypeText(desc))?;
        }
        for op in &block.ops {
            write!(f, "  {}", self.op_text(op))?;
            if let Some(site) = op.site {
                write!(f, "  # {site}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    /// An operator with the names of this program: `y = relu(X=x)`.
    pub fn op_text<'a>(&'a self, op: &'a OpDesc) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| {
            self.write_outputs(f, op.outputs.iter().filter(|(_, args)| !args.is_empty()))?;
            write!(f, "{}(", op.ty)?;
            let mut separator = "";
            for (slot, args) in op.inputs.iter().filter(|(_, args)| !args.is_empty()) {
                write!(f, "{separator}{slot}=")?;
                self.write_args(f, args)?;
                separator = ", ";
            }
            for (name, value) in op.attrs.iter() {
                write!(f, "{separator}{name}={value}")?;
                separator = ", ";
            }
            write!(f, ")")
        })
    }

    /// `y = `, or `Out=y, Indices=i = ` with several slots.
    fn write_outputs<'a>(
        &self,
        f: &mut fmt::Formatter<'_>,
        slots: impl Iterator<Item = (super::Name, &'a [Var])>,
    ) -> fmt::Result {
        let slots: Vec<_> = slots.collect();
        for (i, (slot, args)) in slots.iter().enumerate() {
            if slots.len() > 1 {
                write!(f, "{}{slot}=", if i > 0 { ", " } else { "" })?;
            }
            self.write_args(f, args)?;
        }
        if slots.is_empty() { Ok(()) } else { write!(f, " = ") }
    }

    fn write_args(&self, f: &mut fmt::Formatter<'_>, args: &[Var]) -> fmt::Result {
        match args {
            [one] => f.write_str(self.name(*one)),
            many => {
                let names: Vec<_> = many.iter().map(|v| self.name(*v)).collect();
                write!(f, "[{}]", names.join(", "))
            }
        }
    }
}

fn role(desc: &VarDesc) -> &'static str {
    match (desc.parameter, desc.persistable) {
        (true, _) => "parameter",
        (false, true) => "persistable",
        (false, false) => "data",
    }
}

/// `float32 [2, 3]`
pub(super) struct TypeText<'a>(pub(super) &'a VarDesc);
impl fmt::Display for TypeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind {
            VarKind::Tensor | VarKind::SelectedRows => self.0.meta().fmt(f),
            VarKind::TensorArray => write!(f, "array of {}", self.0.dtype),
            VarKind::StepScopes => write!(f, "step scopes"),
        }
    }
}
