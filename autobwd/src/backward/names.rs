//! Names of gradients: `w@GRAD`, or, where that is taken or `w` is written more than once, one of its own.

use crate::{Program, Var};

/// The gradients of variables, as the pass that walks the program backwards meets them.
pub(super) struct GradNames {
    /// By variable: the gradient of the definition that is current at this point of the walk.
    of: Vec<Option<Var>>,
    /// By variable: whether it is a gradient of this backward part, and of what.
    base: Vec<Option<Var>>,
}

/// The variable of that name, or a numbered one where the program declares that already.
pub(super) fn undeclared(program: &mut Program, name: &str) -> Var {
    match program.find(name) {
        Some(var) if program.root().vars.contains_key(&var) => program.fresh(name),
        _ => program.var(name),
    }
}

impl GradNames {
    /// Names for everything that the path and the targets mention.
    pub(super) fn new(program: &mut Program, path: &[usize], targets: &[Var], inputs: &[Var]) -> GradNames {
        let mut names = GradNames { of: vec![None; program.name_count()], base: vec![] };
        let mut mentioned: Vec<Var> = targets.iter().chain(inputs).copied().collect();
        for i in path {
            let op = &program.root().ops[*i];
            mentioned.extend(op.reads().chain(op.writes()));
        }
        for var in mentioned {
            if names.of[var.index()].is_none() {
                let name = format!("{}@GRAD", program.name(var));
                let grad = undeclared(program, &name);
                names.set(var, grad);
            }
        }
        names
    }

    fn set(&mut self, var: Var, grad: Var) {
        self.of[var.index()] = Some(grad);
        self.note(grad, var);
    }

    /// Records that `grad` is (part of) a gradient of `var`.
    pub(super) fn note(&mut self, grad: Var, var: Var) {
        if self.base.len() <= grad.index() {
            self.base.resize(grad.index() + 1, None);
        }
        self.base[grad.index()] = Some(var);
    }

    /// From here on, backwards, `var` is another definition with a gradient of its own.
    pub(super) fn start_older(&mut self, program: &mut Program, var: Var) {
        let name = format!("{}@GRAD@OLDER", program.name(var));
        let grad = program.fresh(&name);
        self.set(var, grad);
    }

    /// The gradient of a variable where it is written.
    pub(super) fn of_output(&self, var: Var) -> Var {
        self.of.get(var.index()).copied().flatten().unwrap_or(Var::EMPTY)
    }

    /// The gradient of a variable where it is read; after the walk: of its first definition.
    pub(super) fn of_input(&self, var: Var) -> Var {
        self.of_output(var)
    }

    /// The variable that `grad` is a gradient of, if it is one of this backward part.
    pub(super) fn base(&self, grad: Var) -> Option<Var> {
        self.base.get(grad.index()).copied().flatten()
    }
}
