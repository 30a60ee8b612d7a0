//! The fingerprint of a program: a hash of what it computes.

use xxhash_rust::xxh3::Xxh3;

use super::{Attr, OpDesc, Program, Slots, VarDesc, VarKind};

impl Program {
    /// A hash of the program: of its blocks, of the names, kinds, dtypes and shapes of its variables, and of types,
    /// slots and attributes of its operators. Source lines, origins of operators, the variables that gradients belong to
    /// and the signature do not count.
    ///
    /// Equal programs have equal fingerprints, on every machine and in every process. A checkpoint records by it which
    /// program it belongs to, and processes that run together compare theirs.
    ///
    /// ```
    /// # use autobwd::{Builder, DType, Program};
    /// # use autobwd_ops::Math;
    /// let fingerprint = |factor: f64| -> autobwd::Result<u64> {
    ///     let net = Builder::new();
    ///     (net.input("x", DType::F32, &[-1, 3]) * factor).tanh();
    ///     let program = net.program()?;
    ///     assert_eq!(Program::from_json(&program.to_json())?.fingerprint(), program.fingerprint());
    ///     Ok(program.fingerprint())
    /// };
    /// assert_eq!(fingerprint(2.0)?, fingerprint(2.0)?);
    /// assert_ne!(fingerprint(2.0)?, fingerprint(3.0)?);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    pub fn fingerprint(&self) -> u64 {
        let mut hash = ProgramHash { program: self, hash: Xxh3::new() };
        hash.number(self.blocks().len());
        for block in self.blocks() {
            for id in [block.parent, block.forward] {
                // 0 stands for none.
                hash.number(id.map_or(0, |id| id.index() + 1));
            }
            hash.number(block.vars.len());
            for (var, desc) in block.vars.iter() {
                hash.text(self.name(*var));
                hash.var(desc);
            }
            hash.number(block.ops.len());
            block.ops.iter().for_each(|op| hash.op(op));
        }
        hash.hash.digest()
    }
}

/// Every list is preceded by its length and every attribute by its type, so that different programs give different
/// bytes.
struct ProgramHash<'a> {
    program: &'a Program,
    hash: Xxh3,
}

impl ProgramHash<'_> {
    fn number(&mut self, number: usize) {
        self.hash.update(&(number as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.hash.update(text.as_bytes());
    }

    fn var(&mut self, desc: &VarDesc) {
        let kind = match desc.kind {
            VarKind::Tensor => 0,
            VarKind::TensorArray => 1,
            VarKind::SelectedRows => 2,
            VarKind::StepScopes => 3,
        };
        let flags = [desc.persistable, desc.stop_gradient, desc.parameter].map(u8::from);
        self.hash.update(&[kind, desc.dtype.code() as u8]);
        self.hash.update(&flags);
        self.number(desc.dims.len());
        desc.dims.iter().for_each(|dim| self.hash.update(&dim.wire().to_le_bytes()));
    }

    fn op(&mut self, op: &OpDesc) {
        self.text(&op.ty);
        self.slots(&op.inputs);
        self.slots(&op.outputs);
        self.number(op.attrs.iter().count());
        for (name, attr) in op.attrs.iter() {
            self.text(&name);
            self.attr(attr);
        }
    }

    fn slots(&mut self, slots: &Slots) {
        self.number(slots.iter().count());
        for (slot, args) in slots.iter() {
            self.text(&slot);
            self.number(args.len());
            args.iter().for_each(|var| self.text(self.program.name(*var)));
        }
    }

    fn attr(&mut self, attr: &Attr) {
        let mut list = |kind: u8, items: &[u64]| {
            self.hash.update(&[kind]);
            self.number(items.len());
            items.iter().for_each(|item| self.hash.update(&item.to_le_bytes()));
        };
        match attr {
            Attr::Bool(x) => list(0, &[u64::from(*x)]),
            Attr::I32(x) => list(1, &[*x as u64]),
            Attr::I64(x) => list(2, &[*x as u64]),
            Attr::F32(x) => list(3, &[u64::from(x.to_bits())]),
            Attr::F64(x) => list(4, &[x.to_bits()]),
            Attr::Bools(all) => list(5, &all.iter().map(|x| u64::from(*x)).collect::<Vec<_>>()),
            Attr::I32s(all) => list(6, &all.iter().map(|x| *x as u64).collect::<Vec<_>>()),
            Attr::I64s(all) => list(7, &all.iter().map(|x| *x as u64).collect::<Vec<_>>()),
            Attr::F32s(all) => list(8, &all.iter().map(|x| u64::from(x.to_bits())).collect::<Vec<_>>()),
            Attr::F64s(all) => list(9, &all.iter().map(|x| x.to_bits()).collect::<Vec<_>>()),
            Attr::Block(id) => list(10, &[id.index() as u64]),
            Attr::Blocks(all) => list(11, &all.iter().map(|id| id.index() as u64).collect::<Vec<_>>()),
            Attr::Str(text) => {
                list(12, &[]);
                self.text(text);
            }
            Attr::Strs(all) => {
                list(13, &[all.len() as u64]);
                all.iter().for_each(|text| self.text(text));
            }
        }
    }
}
