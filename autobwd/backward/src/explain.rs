//! Explanation of a gradient: the operators that compute it, from the seed to the result.

use std::fmt;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::flow::{LISTED, forward_ops, given_for, incoming, listed};
use crate::path_ends::missing;
use crate::report::{OpLocation, PathEnd};
use autobwd_core::{
    __private::did_you_mean, Attr, BlockId, Error, ErrorKind, OpDesc, Origin, Program, Result, Var,
};

/// Number of operators shown of a long explanation: the first ones, and those that lead to the gradient.
const FIRST: usize = 4;
const LAST: usize = 12;

/// Explains how a gradient is computed: the operators, the forward operators and source lines they belong to, the sums,
/// the zeros and their reasons, and the start. For a variable without gradient, it says where the path ends. A long
/// explanation omits the middle.
///
/// It needs only the program, which may have been read from a file.
///
/// # Errors
/// The program has no such gradient, nor a variable that it could be the gradient of (similar names are suggested), or
/// it has no backward pass.
///
/// ```
/// # use autobwd::{Backward, Builder, DType, append_backward};
/// # use autobwd_ops::{Init, Math};
/// use autobwd::explain;
///
/// let net = Builder::new();
/// let w = net.parameter("w", DType::F32, &[3], |w| Init::Constant(3.0).emit(w, 0));
/// let frozen = net.parameter("frozen", DType::F32, &[3], |w| Init::Constant(1.0).emit(w, 0)).freeze();
/// let loss = (&w * &frozen).mean();
/// let mut program = net.program()?.clone();
/// append_backward(&mut program, &loss.name(), &Backward::default())?;
///
/// let story = explain(&program, "w@GRAD")?;
/// let lines: Vec<_> = story.lines().collect();
/// assert_eq!(lines[0], "`w@GRAD` is the gradient of `mean_0` with respect to `w`, computed by 3 operators:");
/// assert_eq!(lines[5], "  operator 4: w@GRAD = elementwise_mul_grad");
/// assert!(lines[6].starts_with("    through operator 0 `elementwise_mul` ("));
/// let e = explain(&program, "frozen@GRAD")?;
/// assert_eq!(e, "`frozen` has no gradient: it is marked `stop_gradient`");
/// # Ok::<(), autobwd::Error>(())
/// ```
pub fn explain(program: &Program, gradient: &str) -> Result<String> {
    program.check_structure()?;
    let Some(var) = program.find(gradient) else { return cut(program, gradient) };
    let writes = |op: &OpDesc| op.origin != Origin::Model && op.writes().any(|v| v == var);
    match program.blocks().iter().position(|block| block.ops.iter().any(writes)) {
        Some(block) => Ok(Explanation::of(program, BlockId::new(block), var).to_string()),
        None => cut(program, gradient),
    }
}

/// The reason why there is no gradient of that name.
fn cut(program: &Program, gradient: &str) -> Result<String> {
    let vars = &program.root().vars;
    let variable = gradient.strip_suffix("@GRAD").and_then(|name| program.find(name));
    let Some(var) = variable.filter(|v| vars.contains_key(v)) else {
        let known = vars.iter().filter(|(_, desc)| desc.gradient_of.is_some());
        let own = format!("{gradient}@GRAD");
        let wanted = program.find(&own).map_or(gradient, |_| &own);
        let hint = did_you_mean(wanted, known.map(|(v, _)| program.name(*v)));
        let text = format!("the program has no gradient `{gradient}`{hint}");
        return Err(Error::new(ErrorKind::UnknownVar, text));
    };
    let seeds = program.root().ops.iter().filter(|op| op.origin == Origin::Seed);
    let gradient_of = |v: Var| vars.get(&v).and_then(|desc| desc.gradient_of);
    let targets: Vec<Var> = seeds.flat_map(OpDesc::writes).filter_map(gradient_of).collect();
    if targets.is_empty() {
        let text = format!("the program has no backward pass that computes `{gradient}`");
        return Err(Error::new(ErrorKind::NoGradient, text));
    }
    let having = vars.values().filter_map(|desc| desc.gradient_of);
    let mut text = String::new();
    for missing in missing(program, &targets, &[], having, None, &[var]) {
        text = missing.to_string();
        if let PathEnd::Operator { name, .. } = &missing.cut {
            // The program does not record which gradients were requested.
            text += &format!("; or `{name}` was in the no-grad set, or not requested");
        }
    }
    Ok(text)
}

/// The operators of a block that compute a gradient.
struct Explanation<'a> {
    program: &'a Program,
    block: BlockId,
    gradient: Var,
    /// Their positions.
    ops: Vec<usize>,
    /// The position of the operator that writes a variable.
    writer: FxHashMap<Var, usize>,
    /// Gradients that none of them computes, with the variables they belong to.
    given: Vec<(Var, Var)>,
}

impl<'a> Explanation<'a> {
    fn of(program: &'a Program, block: BlockId, gradient: Var) -> Explanation<'a> {
        let mut story = Explanation {
            program,
            block,
            gradient,
            ops: vec![],
            writer: FxHashMap::default(),
            given: vec![],
        };
        let mut wanted = FxHashSet::from_iter([gradient]);
        for (index, op) in story.block_ops().iter().enumerate().rev() {
            if op.origin == Origin::Model || !op.writes().any(|v| wanted.contains(&v)) {
                continue;
            }
            story.ops.push(index);
            if op.origin == Origin::AllReduce {
                // It sums each gradient by itself: the others that it exchanges are not needed.
                let pairs: Vec<_> =
                    op.writes().zip(op.reads()).filter(|(sum, _)| wanted.remove(sum)).collect();
                wanted.extend(pairs.into_iter().map(|(_, own)| own));
                continue;
            }
            for var in op.writes() {
                wanted.remove(&var);
                story.writer.entry(var).or_insert(index);
            }
            wanted.extend(incoming(program, block, op));
        }
        story.ops.reverse();
        let read = story
            .own_ops()
            .filter(|(_, op)| op.origin != Origin::AllReduce)
            .flat_map(|(_, op)| incoming(program, block, op).into_iter().map(move |v| (op, v)));
        let given = read.filter(|(_, v)| wanted.remove(v));
        let given = given.map(|(op, v)| (v, story.given_for(op, v)));
        story.given = given.collect();
        story
    }

    /// The variable of a gradient that none of the operators computes.
    fn given_for(&self, op: &OpDesc, grad: Var) -> Var {
        given_for(self.program, self.block, op, grad).or_else(|| self.gradient_of(grad)).unwrap_or(grad)
    }

    fn block_ops(&self) -> &'a [OpDesc] {
        self.program.block(self.block).map_or(&[], |block| &block.ops)
    }

    fn own_ops(&self) -> impl Iterator<Item = (usize, &'a OpDesc)> + use<'_, 'a> {
        let ops = self.block_ops();
        self.ops.iter().map(|i| (*i, &ops[*i]))
    }

    fn gradient_of(&self, var: Var) -> Option<Var> {
        self.program.lookup(self.block, var).and_then(|desc| desc.gradient_of)
    }

    fn quoted(&self, var: Var) -> String {
        format!("`{}`", self.program.name(var))
    }

    /// `` `a`, `b` and 3 more ``.
    fn names(&self, vars: &[Var]) -> String {
        listed(vars.iter().map(|v| self.quoted(*v)), vars.len())
    }

    fn targets(&self) -> String {
        let seeds = self.own_ops().filter(|(_, op)| op.origin == Origin::Seed);
        let mut targets: Vec<Var> =
            seeds.flat_map(|(_, op)| op.writes()).filter_map(|v| self.gradient_of(v)).collect();
        targets.extend(self.given.iter().map(|(_, of)| of));
        targets.dedup();
        self.names(&targets)
    }

    /// A forward operator, and the one that it is the gradient of, if any.
    fn place(&self, of: usize) -> String {
        let (mut text, mut index) = (String::new(), of);
        loop {
            let Some(op) = forward_ops(self.program, self.block).get(index) else {
                return text + &format!("operator {index}, which does not exist");
            };
            match op.origin {
                Origin::Gradient { of } if of < index => {
                    text += &format!("operator {index} `{}`, itself the gradient of ", op.ty);
                    index = of;
                }
                Origin::Model | Origin::Gradient { .. } => {
                    return text + &OpLocation::of(index, op).to_string();
                }
                Origin::AllReduce
                | Origin::Kept
                | Origin::Recompute { .. }
                | Origin::Seed
                | Origin::Accumulate
                | Origin::ZeroFill => {
                    let outputs: Vec<Var> = op.writes().collect();
                    return text
                        + &format!("operator {index} `{}`, which makes {}", op.ty, self.names(&outputs));
                }
            }
        }
    }

    /// Inputs of the forward operator whose gradients an operator of its rule writes: `` X = `h` ``, or `` X and Y =
    /// `h` ``.
    fn inputs(&self, op: &OpDesc, fwd: &OpDesc, is_meant: &dyn Fn(Var) -> bool) -> Vec<String> {
        let mut found = vec![];
        for (slot, grads) in op.outputs.iter() {
            let wired = slot.strip_suffix("@GRAD").map(|input| (input, fwd.inputs.get(input)));
            for (i, grad) in grads.iter().enumerate().filter(|(_, grad)| is_meant(**grad)) {
                let own = wired.and_then(|(input, vars)| Some((input.to_string(), *vars.get(i)?)));
                let by_name = || {
                    let var = self.gradient_of(*grad)?;
                    let slots = fwd.inputs.iter().filter(|(_, vars)| vars.contains(&var));
                    let slots: Vec<_> = slots.map(|(slot, _)| slot).collect();
                    (!slots.is_empty()).then(|| (listed(&slots, slots.len()), var))
                };
                let input = own.or_else(by_name);
                found.extend(input.map(|(slot, var)| format!("{slot} = {}", self.quoted(var))));
            }
        }
        found
    }

    /// The forward operator, and its inputs, whose gradients an operator writes.
    fn path_text(&self, op: &OpDesc, is_meant: &dyn Fn(Var) -> bool) -> String {
        let Origin::Gradient { of } = op.origin else { return format!("`{}`", op.ty) };
        let place = self.place(of);
        match forward_ops(self.program, self.block).get(of).map(|fwd| self.inputs(op, fwd, is_meant)) {
            Some(inputs) if !inputs.is_empty() => {
                format!("{place} to {}", listed(&inputs, inputs.len()))
            }
            _ => format!("{place}, a step of its rule"),
        }
    }

    /// The reason for an operator.
    fn reason(&self, index: usize, op: &OpDesc) -> String {
        let out = op.writes().next().unwrap_or(Var::EMPTY);
        let of = self.gradient_of(out);
        match op.origin {
            Origin::Model => String::new(),
            Origin::Recompute { of } => format!("recomputes the result of {}", self.place(of)),
            Origin::Kept => {
                let value = op.reads().next().unwrap_or(out);
                let mut later = self.block_ops().iter().enumerate().skip(index + 1);
                let next = later.find(|(_, op)| op.writes().any(|v| v == value));
                let next = next.map(|(i, op)| format!(", which {} overwrites", OpLocation::of(i, op)));
                format!("keeps {}{}", self.quoted(value), next.unwrap_or_default())
            }
            Origin::Seed => {
                let site = op.site.map(|s| format!(" (asked for at {s})")).unwrap_or_default();
                match (of, op.reads().next()) {
                    (Some(of), Some(given)) if given != of => {
                        format!(
                            "starts from {}, given as the gradient of {}{site}",
                            self.quoted(given),
                            self.quoted(of)
                        )
                    }
                    (of, _) => {
                        let target = self.quoted(of.unwrap_or(out));
                        let share = share(op).map(|x| format!(", times {x}")).unwrap_or_default();
                        format!(
                            "starts from {target}, whose derivative with respect to itself is one{share}{site}"
                        )
                    }
                }
            }
            Origin::Gradient { .. } => format!("through {}", self.path_text(op, &|v| v != Var::EMPTY)),
            Origin::Accumulate => {
                let parts: Vec<Var> = op.reads().collect();
                let (n, of) = (parts.len(), self.quoted(of.unwrap_or(out)));
                let mut text = format!("sums {n} contributions to the gradient of {of}:");
                for part in parts.iter().take(LISTED) {
                    let writer = self.writer.get(part).filter(|i| **i != index);
                    let from = match writer.map(|i| &self.block_ops()[*i]) {
                        Some(op) if op.origin != Origin::Seed => {
                            format!("through {}", self.path_text(op, &|v| v == *part))
                        }
                        _ => "from the start".into(),
                    };
                    text += &format!("\n      {} {from}", self.program.name(*part));
                }
                if n > LISTED {
                    text += &format!("\n      and {} more", n - LISTED);
                }
                text
            }
            Origin::ZeroFill => self.zeros(index, out, of.unwrap_or(out)),
            Origin::AllReduce => match op.writes().count() {
                1 => "sums it over all ranks".into(),
                n => format!(
                    "sums {} over all ranks, each of {n} gradients by itself",
                    self.quoted(self.gradient)
                ),
            },
        }
    }

    fn zeros(&self, index: usize, grad: Var, of: Var) -> String {
        let ops = self.block_ops();
        let needs = ops.iter().enumerate().skip(index).find(|(_, op)| op.reads().any(|v| v == grad));
        let needs = needs.map(|(i, op)| format!("; operator {i} `{}` needs them", op.ty)).unwrap_or_default();
        // In the same block, the forward operators stand before the backward pass.
        let own_part = self.program.block(self.block).is_some_and(|block| block.forward.is_none());
        let before = if own_part { self.ops.first().copied().unwrap_or(0) } else { usize::MAX };
        let read = forward_ops(self.program, self.block)
            .iter()
            .take(before)
            .flat_map(OpDesc::reads)
            .any(|v| v == of);
        let of = self.quoted(of);
        let why = match read {
            true => format!("no reader of {of} passes a gradient on to it"),
            false => format!("nothing reads {of}"),
        };
        format!("zeros, as {why}{needs}")
    }

    fn write_op(&self, f: &mut fmt::Formatter<'_>, index: usize, op: &OpDesc) -> fmt::Result {
        let written: Vec<&str> = op.writes().map(|v| self.program.name(v)).collect();
        write!(f, "\n  operator {index}: {} = {}", listed(&written, written.len()), op.ty)?;
        write!(f, "\n    {}", self.reason(index, op))
    }
}

/// The constant other than one with which the backward pass starts: data-parallel steps average gradients by it.
fn share(seed: &OpDesc) -> Option<f64> {
    let value = match seed.attrs.get("value")? {
        Attr::F32(x) => f64::from(*x),
        Attr::F64(x) => *x,
        _ => return None,
    };
    (value != 1.0).then_some(value)
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops: Vec<(usize, &OpDesc)> = self.own_ops().collect();
        let name = self.quoted(self.gradient);
        let summed = self.block_ops().iter().filter(|op| op.origin == Origin::Accumulate);
        let is_part = summed.flat_map(OpDesc::reads).any(|v| v == self.gradient);
        match self.gradient_of(self.gradient) {
            Some(of) => {
                let part = if is_part { "a contribution to " } else { "" };
                let (targets, of) = (self.targets(), self.quoted(of));
                write!(f, "{name} is {part}the gradient of {targets} with respect to {of}")?;
            }
            None => write!(f, "{name} is a step of a gradient rule")?,
        }
        write!(f, ", computed by {} operators:", ops.len())?;
        for (given, of) in &self.given {
            write!(f, "\n  {} was given as the gradient of {}", self.quoted(*given), self.quoted(*of))?;
        }
        let hidden = match ops.len() {
            n if n > FIRST + LAST => FIRST..n - LAST,
            _ => 0..0,
        };
        for (i, (index, op)) in ops.iter().enumerate() {
            if i == hidden.start && !hidden.is_empty() {
                let of = |origin| ops[hidden.clone()].iter().filter(|(_, op)| op.origin == origin).count();
                let (sums, zeros) = (of(Origin::Accumulate), of(Origin::ZeroFill));
                let n = hidden.len();
                write!(f, "\n  … {n} operators more, {sums} sums and {zeros} zero fills among them")?;
            }
            if !hidden.contains(&i) {
                self.write_op(f, *index, op)?;
            }
        }
        Ok(())
    }
}
