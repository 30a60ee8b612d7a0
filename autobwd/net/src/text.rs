//! Text format of nets: one line an operator, indented.

use std::fmt;

use super::{
    NetOp, Operator, RnnGradOp, RnnOp,
    rnn::{GradStep, UpstreamSource},
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

    pub(super) fn net(&mut self, net: &NetOp) -> fmt::Result {
        self.head("net", net.name(), net.inputs(), net.outputs())?;
        net.ops().iter().try_for_each(|op| self.indented().operator(op))
    }

    pub(super) fn rnn(&mut self, rnn: &RnnOp) -> fmt::Result {
        self.head("rnn", rnn.name(), rnn.inputs(), rnn.outputs())?;
        let mut inside = self.indented();
        for link in rnn.step_inputs() {
            inside.line(format_args!("{} = {}[t]", link.inner, link.outer))?;
        }
        for memory in rnn.memories() {
            inside.line(format_args!("{} = {}[t-1], at first {}", memory.pre, memory.state, memory.boot))?;
        }
        inside.net(rnn.step())?;
        for link in rnn.step_outputs() {
            inside.line(format_args!("{}[t] = {}", link.outer, link.inner))?;
        }
        Ok(())
    }

    pub(super) fn rnn_grad(&mut self, grad: &RnnGradOp) -> fmt::Result {
        let forward = grad.forward();
        self.head("rnn_grad", forward.name(), grad.inputs(), grad.outputs())?;
        let mut inside = self.indented();
        for (i, step) in grad.steps.iter().enumerate() {
            match (i + 1 == grad.steps.len(), i) {
                (true, 0) => inside.line("for every t, the last first")?,
                (true, _) => inside.line(format_args!("for t = T-{}, …, 0", i + 1))?,
                (false, _) => inside.line(format_args!("for t = T-{}", i + 1))?,
            }
            inside.indented().grad_step(grad, step)?;
        }
        for (link, to) in grad.input_links() {
            inside.line(format_args!("{to}[t] = {}{GRAD}", link.inner))?;
        }
        for (memory, to) in grad.boot_links() {
            inside.line(format_args!("{to} = {}{GRAD}[0]", memory.pre))?;
        }
        Ok(())
    }

    fn grad_step(&mut self, grad: &RnnGradOp, step: &GradStep) -> fmt::Result {
        for (from, name) in &step.arrivals {
            match *from {
                UpstreamSource::Output(i) => {
                    let outer = grad.output_grads[i].as_deref().unwrap_or_default();
                    self.line(format_args!("{name} = {outer}[t]"))?;
                }
                UpstreamSource::Memory(i) => {
                    self.line(format_args!("{name} = {}{GRAD}[t+1]", grad.forward.memories()[i].pre))?;
                }
            }
        }
        self.operator(&step.op)?;
        for ((_, to), parts) in grad.shared_grads.iter().zip(&step.parts).filter(|(_, p)| !p.is_empty()) {
            let name = grad.forward.name();
            let parts: Vec<String> = parts.iter().map(|part| format!("{name}@t/{part}")).collect();
            self.line(format_args!("{to} += {}", parts.join(" + ")))?;
        }
        Ok(())
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
