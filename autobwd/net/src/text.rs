//! Text format of nets: one line an operator, indented.

use std::fmt;

use super::{
    NetOp, Operator, RnnGradOp, RnnOp,
    rnn::{StepValue, StepsGradient, StepsGradientKind},
};
use autobwd_core::desc::GRAD;

/// Writes lines at a given indentation level.
pub(super) struct Indented<'a, 'f>(pub(super) &'a mut fmt::Formatter<'f>, pub(super) usize);

impl<'f> Indented<'_, 'f> {
    fn line(&mut self, text: impl fmt::Display) -> fmt::Result {
        writeln!(self.0, "{:1$}{text}", "", 2 * self.1)
    }

    fn indented(&mut self) -> Indented<'_, 'f> {
        Indented(self.0, self.1 + 1)
    }

    fn head(&mut self, kind: &str, name: &str, inputs: Vec<&str>, outputs: Vec<&str>) -> fmt::Result {
        let text = format!("{kind} {name}({}) -> {}", inputs.join(", "), outputs.join(", "));
        self.line(text.trim_end())
    }

    pub(super) fn operator(&mut self, op: &Operator) -> fmt::Result {
        match op {
            Operator::Nop => self.line("nop"),
            Operator::Op(op) => self.line(op),
            Operator::Net(net) => self.net(net),
            Operator::Rnn(rnn) => self.rnn(rnn),
            Operator::RnnGrad(grad) => self.rnn_grad(grad),
        }
    }

    fn net(&mut self, net: &NetOp) -> fmt::Result {
        self.head("net", net.name(), net.inputs(), net.outputs())?;
        net.ops().iter().try_for_each(|op| self.indented().operator(op))
    }

    /// The values that a step starts with, and its net. `before` is the step that ran before step `t`.
    fn step(&mut self, starts: &[StepValue], net: &NetOp, before: &str) -> fmt::Result {
        for StepValue { name, state, outer } in starts {
            let outer = outer.as_deref().unwrap_or_default();
            match state {
                None => self.line(format_args!("{name} = {outer}[t]"))?,
                Some(state) if outer.is_empty() => self.line(format_args!("{name} = {state}[{before}]"))?,
                Some(state) => self.line(format_args!("{name} = {state}[{before}], at first {outer}"))?,
            }
        }
        self.net(net)
    }

    fn rnn(&mut self, rnn: &RnnOp) -> fmt::Result {
        self.head("rnn", rnn.name(), rnn.inputs(), rnn.outputs())?;
        let mut inside = self.indented();
        inside.step(&rnn.starts, rnn.step(), "t-1")?;
        let outputs = &rnn.outputs;
        outputs.iter().try_for_each(|out| inside.line(format_args!("{}[t] = {}", out.sequence, out.value)))
    }

    fn rnn_grad(&mut self, grad: &RnnGradOp) -> fmt::Result {
        let name = grad.forward.name();
        self.head("rnn_grad", name, grad.inputs(), grad.outputs())?;
        let mut inside = self.indented();
        for (i, step) in grad.steps.iter().enumerate() {
            match (i + 1 == grad.steps.len(), i) {
                (true, 0) => inside.line("for every t, the last first")?,
                (true, _) => inside.line(format_args!("for t = T-{}, …, 0", i + 1))?,
                (false, _) => inside.line(format_args!("for t = T-{}", i + 1))?,
            }
            let mut inside = inside.indented();
            inside.step(&step.starts, &step.net, "t+1")?;
            for (result, parts) in grad.results.iter().zip(&step.parts) {
                if result.kind == StepsGradientKind::Summed && !parts.is_empty() {
                    let parts: Vec<String> = parts.iter().map(|part| format!("{name}@t/{part}")).collect();
                    inside.line(format_args!("{} += {}", result.grad, parts.join(" + ")))?;
                }
            }
        }
        for StepsGradient { grad, value, kind, .. } in &grad.results {
            match kind {
                StepsGradientKind::Stacked => inside.line(format_args!("{grad}[t] = {value}{GRAD}"))?,
                StepsGradientKind::First => inside.line(format_args!("{grad} = {value}{GRAD}[0]"))?,
                StepsGradientKind::Summed => {}
            }
        }
        Ok(())
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Indented(f, 0).operator(self)
    }
}

impl fmt::Display for NetOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Indented(f, 0).net(self)
    }
}

impl fmt::Display for RnnOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Indented(f, 0).rnn(self)
    }
}

impl fmt::Display for RnnGradOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Indented(f, 0).rnn_grad(self)
    }
}
