//! Names of gradients: `w@GRAD`, or a numbered name if that is taken or `w` is written more than once.

use rustc_hash::FxHashMap;

use autobwd_core::{__private::internals::*, Program, Var};

/// The gradients of variables during the walk backwards through the program.
#[derive(Debug)]
pub struct GradNames {
    /// By variable.
    of: Vec<GradName>,
    /// By variable: its entry, if it is a gradient of this backward pass.
    grads: Vec<Option<GradEntry>>,
    /// By gradient of an overwritten value: the stand-in for that value.
    stand_ins: FxHashMap<Var, Var>,
    /// By variable: a name for the gradient of an older version that is not in use.
    spare: FxHashMap<Var, Var>,
    /// By loop-carried variable of a sub-block.
    starts: FxHashMap<Var, StepStart>,
    /// Whether it is a sub-block, in which all names are free.
    local: bool,
}

/// A variable that every step of a sub-block reads and overwrites.
#[derive(Clone, Copy, Debug)]
struct StepStart {
    /// The first operator that overwrites it.
    writer: usize,
    /// The gradient of the value before the step.
    grad: Var,
    /// The gradient of the value after the step, whose name it gets.
    name: Var,
}

/// The gradient name for the current version of a variable.
#[derive(Clone, Copy, Debug)]
enum GradName {
    /// No version of the variable has a gradient name yet.
    Free,
    Is(Var),
    /// Only a later version of the variable has a gradient name.
    Older,
}

#[derive(Clone, Copy, Debug)]
struct GradEntry {
    base: Var,
    /// Whether it has a contribution so far.
    arrives: bool,
}

/// The variable of that name, or a numbered one if the program declares that name.
pub(super) fn undeclared(program: &mut Program, name: &str) -> Var {
    match program.find(name) {
        Some(var) if program.root().vars.contains_key(&var) => program.fresh(name),
        _ => program.var(name),
    }
}

impl GradNames {
    /// The state at the end of the program.
    pub fn new(program: &Program) -> GradNames {
        let of = vec![GradName::Free; program.name_count()];
        let (stand_ins, spare, starts) = Default::default();
        GradNames { of, grads: vec![], stand_ins, spare, starts, local: false }
    }

    /// The state at the end of a sub-block. `found` are the loop-carried variables, each with the first operator that
    /// overwrites it.
    pub(super) fn of_block(program: &mut Program, found: &[(Var, usize)]) -> GradNames {
        let mut names = GradNames { local: true, ..GradNames::new(program) };
        for (var, writer) in found {
            let name = format!("{}@GRAD", program.name(*var));
            let (grad, name) = (program.fresh("@START@"), program.var(&name));
            names.note(grad, *var);
            names.starts.insert(*var, StepStart { writer: *writer, grad, name });
        }
        names
    }

    /// The final name of a gradient.
    pub(super) fn shown(&self, grad: Var) -> Var {
        let start =
            self.base(grad).and_then(|base| self.starts.get(&base)).filter(|start| start.grad == grad);
        start.map_or(grad, |start| start.name)
    }

    /// A gradient, or the two that share its name in a sub-block: of the values after and before a step.
    pub(super) fn sharing(&self, grad: Var) -> impl Iterator<Item = Var> + use<> {
        let start = self.base(grad).and_then(|base| self.starts.get(&base));
        let pair = start.filter(|start| start.grad == grad || start.name == grad);
        let (first, second) = pair.map_or((grad, None), |start| (start.name, Some(start.grad)));
        std::iter::once(first).chain(second)
    }

    /// The gradient of a loop-carried variable before the step.
    pub(super) fn start(&self, var: Var) -> Option<Var> {
        self.starts.get(&var).map(|start| start.grad)
    }

    /// Records that `grad` is a gradient of `base`, or a part of it.
    fn note(&mut self, grad: Var, base: Var) {
        if self.grads.len() <= grad.index() {
            self.grads.resize(grad.index() + 1, None);
        }
        self.grads[grad.index()] = Some(GradEntry { base, arrives: false });
    }

    /// Records that `part` is part of a gradient.
    pub(super) fn record_part(&mut self, part: Var, grad: Var) {
        if let Some(base) = self.base(grad) {
            self.note(part, base);
        }
        if let Some(stand_in) = self.stand_ins.get(&grad) {
            self.stand_ins.insert(part, *stand_in);
        }
    }

    /// Records the stand-in for the value that `grad` belongs to.
    pub(super) fn record_stand_in(&mut self, grad: Var, stand_in: Var) {
        self.stand_ins.insert(grad, stand_in);
    }

    /// Records a contribution to a gradient.
    pub fn record_contribution(&mut self, grad: Var) {
        if let Some(Some(grad)) = self.grads.get_mut(grad.index()) {
            grad.arrives = true;
        }
    }

    /// From here on, backwards, `var` has an older version, whose gradient has its own name. Returns the gradient of the
    /// newer version unless the older one is the value before a step.
    pub(super) fn start_older(&mut self, var: Var, writer: usize) -> Option<Var> {
        if let Some(start) = self.starts.get(&var).filter(|start| start.writer == writer) {
            self.of[var.index()] = GradName::Is(start.grad);
        } else if let GradName::Is(newer) = self.of[var.index()] {
            self.of[var.index()] = GradName::Older;
            return Some(newer);
        }
        None
    }

    /// Gives the gradient of an older version the name of the newer one's, which it overwrites.
    pub(super) fn share(&mut self, var: Var, newer: Var) {
        if let GradName::Is(older) = std::mem::replace(&mut self.of[var.index()], GradName::Is(newer)) {
            self.spare.insert(var, older);
        }
    }

    /// The gradient of the current version of a variable.
    pub fn here(&mut self, program: &mut Program, var: Var) -> Var {
        let older = match self.of[var.index()] {
            GradName::Is(grad) => return grad,
            GradName::Free => false,
            GradName::Older => true,
        };
        let named = (!older).then(|| program.gradient_var(var));
        let free = named.filter(|grad| self.local || !program.root().vars.contains_key(grad));
        let free = free.or_else(|| self.spare.remove(&var).filter(|_| older));
        let grad = free.unwrap_or_else(|| {
            let suffix = if older { "@GRAD@OLDER" } else { "@GRAD" };
            let prefix = [program.name(var), suffix].concat();
            program.fresh(&prefix)
        });
        self.of[var.index()] = GradName::Is(grad);
        self.note(grad, var);
        grad
    }

    /// As [`here`](GradNames::here), if it already has a name.
    pub fn known(&self, var: Var) -> Option<Var> {
        match self.of.get(var.index()) {
            Some(GradName::Is(grad)) => Some(*grad),
            _ => None,
        }
    }

    fn grad(&self, grad: Var) -> Option<GradEntry> {
        self.grads.get(grad.index()).copied().flatten()
    }

    /// The variable of the gradient `grad`, if it is one of this backward pass.
    pub(super) fn base(&self, grad: Var) -> Option<Var> {
        self.grad(grad).map(|grad| grad.base)
    }

    /// The variable or stand-in that holds the value `grad` belongs to.
    pub(super) fn value(&self, grad: Var) -> Option<Var> {
        self.stand_ins.get(&grad).copied().or_else(|| self.base(grad))
    }

    /// Whether a gradient has a contribution so far.
    pub fn arrives(&self, grad: Var) -> bool {
        self.grad(grad).is_some_and(|grad| grad.arrives)
    }
}
