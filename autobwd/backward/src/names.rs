//! Names of gradients: `w@GRAD`, or, where that is taken or `w` is written more than once, one of its own.

use rustc_hash::FxHashMap;

use autobwd_core::{Program, Var};

/// The gradients of variables, as the pass that walks the program backwards meets them.
pub(super) struct GradNames {
    /// By variable.
    of: Vec<Name>,
    /// By variable: what is known of it, if it is a gradient of this backward part.
    grads: Vec<Option<Grad>>,
    /// Of the gradients of values that are overwritten: what stands in for these.
    stand_ins: FxHashMap<Var, Var>,
    /// Of a sub-block: what every step finds and overwrites.
    starts: FxHashMap<Var, Start>,
    /// Whether it is a sub-block, in which names are free.
    local: bool,
}

/// Of a variable that every step of a sub-block finds and overwrites.
#[derive(Clone, Copy)]
struct Start {
    /// The operator that is the first to overwrite it.
    writer: usize,
    /// Stands for the gradient of what the step finds.
    grad: Var,
    /// That of what it leaves, of which it gets the name.
    name: Var,
}

/// What the gradient of the value is called that a variable has at this point of the walk.
#[derive(Clone, Copy)]
enum Name {
    /// Nobody has needed one yet, of any value of the variable.
    Free,
    Is(Var),
    /// Nobody has needed one yet, but a later value of the variable has it.
    Older,
}

#[derive(Clone, Copy)]
struct Grad {
    base: Var,
    /// Whether anything contributes to it, as far as the walk has come.
    arrives: bool,
}

/// The variable of that name, or a numbered one where the program declares that already.
pub(super) fn undeclared(program: &mut Program, name: &str) -> Var {
    match program.find(name) {
        Some(var) if program.root().vars.contains_key(&var) => program.fresh(name),
        _ => program.var(name),
    }
}

impl GradNames {
    /// At the end of the program.
    pub(super) fn new(program: &Program) -> GradNames {
        let of = vec![Name::Free; program.name_count()];
        let (stand_ins, starts) = Default::default();
        GradNames { of, grads: vec![], stand_ins, starts, local: false }
    }

    /// At the end of a sub-block. `found` are the variables that every step finds and overwrites, each with the operator
    /// that is the first to do so.
    pub(super) fn of_block(program: &mut Program, found: &[(Var, usize)]) -> GradNames {
        let mut names = GradNames { local: true, ..GradNames::new(program) };
        for (var, writer) in found {
            let name = format!("{}@GRAD", program.name(*var));
            let (grad, name) = (program.fresh("@START@"), program.var(&name));
            names.note(grad, *var);
            names.starts.insert(*var, Start { writer: *writer, grad, name });
        }
        names
    }

    /// What a gradient is called in the end.
    pub(super) fn shown(&self, grad: Var) -> Var {
        let start =
            self.base(grad).and_then(|base| self.starts.get(&base)).filter(|start| start.grad == grad);
        start.map_or(grad, |start| start.name)
    }

    /// A gradient, or the two that share its name in a sub-block: of what every step leaves, and of what it finds.
    pub(super) fn sharing(&self, grad: Var) -> impl Iterator<Item = Var> + use<> {
        let start = self.base(grad).and_then(|base| self.starts.get(&base));
        let pair = start.filter(|start| start.grad == grad || start.name == grad);
        let (first, second) = pair.map_or((grad, None), |start| (start.name, Some(start.grad)));
        std::iter::once(first).chain(second)
    }

    /// The gradient of what every step finds of a variable, if it overwrites it.
    pub(super) fn start(&self, var: Var) -> Option<Var> {
        self.starts.get(&var).map(|start| start.grad)
    }

    /// Records that `grad` is (part of) a gradient of `base`.
    fn note(&mut self, grad: Var, base: Var) {
        if self.grads.len() <= grad.index() {
            self.grads.resize(grad.index() + 1, None);
        }
        self.grads[grad.index()] = Some(Grad { base, arrives: false });
    }

    /// Records that `part` is part of a gradient.
    pub(super) fn note_part(&mut self, part: Var, grad: Var) {
        if let Some(base) = self.base(grad) {
            self.note(part, base);
        }
        if let Some(stand_in) = self.stand_ins.get(&grad) {
            self.stand_ins.insert(part, *stand_in);
        }
    }

    /// Records what stands in for the value of which `grad` is the gradient.
    pub(super) fn note_stand_in(&mut self, grad: Var, stand_in: Var) {
        self.stand_ins.insert(grad, stand_in);
    }

    /// Records that something contributes to a gradient.
    pub(super) fn note_arrival(&mut self, grad: Var) {
        if let Some(Some(grad)) = self.grads.get_mut(grad.index()) {
            grad.arrives = true;
        }
    }

    /// From here on, backwards, `var` holds an older value, whose gradient has a name of its own.
    pub(super) fn start_older(&mut self, var: Var, writer: usize) {
        if let Some(start) = self.starts.get(&var).filter(|start| start.writer == writer) {
            self.of[var.index()] = Name::Is(start.grad);
        } else if let Name::Is(_) = self.of[var.index()] {
            self.of[var.index()] = Name::Older;
        }
    }

    /// The gradient of what a variable holds here.
    pub(super) fn here(&mut self, program: &mut Program, var: Var) -> Var {
        let older = match self.of[var.index()] {
            Name::Is(grad) => return grad,
            Name::Free => false,
            Name::Older => true,
        };
        let named = (!older).then(|| program.gradient_var(var));
        let free = named.filter(|grad| self.local || !program.root().vars.contains_key(grad));
        let grad = free.unwrap_or_else(|| {
            let suffix = if older { "@GRAD@OLDER" } else { "@GRAD" };
            let prefix = [program.name(var), suffix].concat();
            program.fresh(&prefix)
        });
        self.of[var.index()] = Name::Is(grad);
        self.note(grad, var);
        grad
    }

    /// As [`here`](GradNames::here), where anybody has needed it.
    pub(super) fn known(&self, var: Var) -> Option<Var> {
        match self.of.get(var.index()) {
            Some(Name::Is(grad)) => Some(*grad),
            _ => None,
        }
    }

    fn grad(&self, grad: Var) -> Option<Grad> {
        self.grads.get(grad.index()).copied().flatten()
    }

    /// The variable that `grad` is a gradient of, if it is one of this backward part.
    pub(super) fn base(&self, grad: Var) -> Option<Var> {
        self.grad(grad).map(|grad| grad.base)
    }

    /// What holds the value of which `grad` is the gradient: a variable or a stand-in.
    pub(super) fn value(&self, grad: Var) -> Option<Var> {
        self.stand_ins.get(&grad).copied().or_else(|| self.base(grad))
    }

    /// Whether anything contributes to a gradient, as far as the walk has come.
    pub(super) fn arrives(&self, grad: Var) -> bool {
        self.grad(grad).is_some_and(|grad| grad.arrives)
    }
}
