//! Drawings of trees, as Graphviz and Mermaid graphs.

use rustc_hash::FxHashSet;

use super::{
    NetOp, Operator, RnnGradOp, RnnOp,
    lower::NameScope,
    rnn::{StepValue, StepsGradientKind},
};
use autobwd_core::{
    Attr, BlockId, Name, Op, OpDesc, Origin, Program, Var,
    desc::GRAD,
    desc::draw::{self, Labels},
    operators::Sum,
};

impl Operator {
    /// The tree as a graph in [Graphviz](https://graphviz.org)'s language, drawn as [`Program::to_dot`] draws programs:
    /// a box is an operator, an arrow a variable. A nested net, and a step net over time, is a frame around its
    /// operators; in the frame of a step net, `step_input`, `memory`, `next_step` and `step_output` stand for its
    /// inputs and outputs.
    ///
    /// ```
    /// use autobwd::net::{NetOp, Operator, backward};
    /// use autobwd_ops::matmul::Mul;
    ///
    /// let mul = |x, out| Operator::of(Mul { x, y: "W", out, x_num_col_dims: 1, y_num_col_dims: 1 });
    /// let net = Operator::from(NetOp::new("net", [mul("x", "h"), mul("h", "y")])?);
    /// // Both products read the shared variable; their contributions to its gradient are summed.
    /// assert_eq!(net.to_dot().matches("[label=\"W\"").count(), 1);
    /// let gradient = backward(&net, &["x"])?.to_dot();
    /// assert!(gradient.contains("label=\"2: sum\""), "{gradient}");
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    pub fn to_dot(&self) -> String {
        let NetOutline { program, titles } = NetOutline::of(self);
        draw::dot(&program, Labels { title: &|block| titles[block].clone(), ..Labels::default() })
    }

    /// The tree as a [Mermaid](https://mermaid.js.org) flow chart; otherwise as [`to_dot`](Operator::to_dot).
    pub fn to_mermaid(&self) -> String {
        let NetOutline { program, titles } = NetOutline::of(self);
        draw::mermaid(&program, Labels { title: &|block| titles[block].clone(), ..Labels::default() })
    }
}

/// A tree as a program for drawing only: its blocks are nets, its variables have no type.
struct NetOutline {
    program: Program,
    /// By block.
    titles: Vec<String>,
}

impl NetOutline {
    fn of(tree: &Operator) -> NetOutline {
        let mut outline = NetOutline { program: Program::new(), titles: vec![tree.label()] };
        outline.list(tree.list(), BlockId::ROOT, &NameScope::default());
        outline
    }

    fn list(&mut self, ops: &[Operator], block: BlockId, names: &NameScope<'_>) {
        for op in ops {
            match op {
                Operator::Nop => {}
                Operator::Op(op) => {
                    let desc = op.desc(&mut |name| self.program.var(&names.full_name(name)));
                    self.push(desc, block);
                }
                Operator::Net(net) => {
                    // Other operators, such as gradients, may also read intermediates of a net.
                    let read: FxHashSet<&str> = ops.iter().flat_map(Operator::inputs).collect();
                    let kept = net
                        .intermediates()
                        .into_iter()
                        .filter(|name| read.contains(name) && !net.inputs().contains(name));
                    let outputs = net.outputs().into_iter().chain(kept).collect();
                    let inner =
                        self.frame(net.name(), net.name().into(), (net.inputs(), outputs), block, names);
                    self.list(net.ops(), inner, names);
                }
                Operator::Rnn(rnn) => self.rnn(rnn, block, names),
                Operator::RnnGrad(grad) => self.rnn_grad(grad, block, names),
            }
        }
    }

    fn vars<'n>(&mut self, own: impl IntoIterator<Item = &'n str>, names: &NameScope<'_>) -> Vec<Var> {
        own.into_iter().map(|name| self.program.var(&names.full_name(name))).collect()
    }

    fn push(&mut self, op: OpDesc, block: BlockId) {
        let is_gradient = |var: Var| self.program.name(var).contains(GRAD);
        let backward = op.writes().next().is_some() && op.writes().all(is_gradient);
        let origin = if backward { Origin::Accumulate } else { Origin::Model };
        if let Some(block) = self.program.block_mut(block) {
            block.ops.push(OpDesc { origin, ..op });
        }
    }

    /// Adds a frame and returns its block.
    fn frame(
        &mut self,
        ty: &str,
        title: String,
        (inputs, outputs): (Vec<&str>, Vec<&str>),
        block: BlockId,
        names: &NameScope<'_>,
    ) -> BlockId {
        let inner = self.program.add_block(Some(block), None);
        self.titles.push(title);
        let (reads, writes) = (self.vars(inputs, names), self.vars(outputs, names));
        let op = OpDesc::new(Name::new(ty)).input("X", reads).output("Out", writes);
        self.push(op.attr("block", Attr::Block(inner)), block);
        inner
    }

    /// Adds an input or output of a step.
    fn link(&mut self, ty: &'static str, reads: Vec<Var>, writes: Vec<Var>, block: BlockId) {
        self.push(OpDesc::new(ty).input("X", reads).output("Out", writes), block);
    }

    /// Adds the values that a step starts with, and its net.
    fn step(
        &mut self,
        (starts, net): (&[StepValue], &NetOp),
        block: BlockId,
        names: &NameScope<'_>,
        step: &NameScope<'_>,
    ) {
        for start in starts {
            let ty = match (&start.state, &start.outer) {
                (None, _) => "step_input",
                (Some(_), Some(_)) => "memory",
                (Some(_), None) => "next_step",
            };
            let (from, to) = (self.vars(start.outer.as_deref(), names), self.vars([&*start.name], step));
            self.link(ty, from, to, block);
        }
        self.list(net.ops(), block, step);
    }

    fn rnn(&mut self, rnn: &RnnOp, block: BlockId, names: &NameScope<'_>) {
        let title = format!("{}, every step", rnn.name());
        let inner = self.frame(rnn.name(), title, (rnn.inputs(), rnn.outputs()), block, names);
        let step = names.step(rnn, "t", rnn.locals());
        self.step((&rnn.starts, rnn.step()), inner, names, &step);
        for state in rnn.starts.iter().filter_map(|start| start.state.as_deref()) {
            let state = self.vars([state], &step);
            self.link("next_step", state, vec![], inner);
        }
        for output in &rnn.outputs {
            let (from, to) = (self.vars([&*output.value], &step), self.vars([&*output.sequence], names));
            self.link("step_output", from, to, inner);
        }
    }

    fn rnn_grad(&mut self, grad: &RnnGradOp, block: BlockId, names: &NameScope<'_>) {
        let (rnn, last) = (grad.forward(), grad.steps.len() - 1);
        for (i, own) in grad.steps.iter().enumerate() {
            let title = match (last, i) {
                (0, _) => format!("{}, every step, the last first", rnn.name()),
                (_, 0) => format!("{}, the last step", rnn.name()),
                (_, i) if i < last => format!("{}, {i} steps before the last", rnn.name()),
                _ => format!("{}, all steps before", rnn.name()),
            };
            let outputs = if i == last { grad.outputs() } else { vec![] };
            let ty = format!("{}_grad", rnn.name());
            let inner = self.frame(&ty, title, (grad.inputs(), outputs), block, names);
            let step = names.step(rnn, "t", rnn.locals().chain(own.locals()));
            self.step((&own.starts, &own.net), inner, names, &step);
            for (result, parts) in grad.results.iter().zip(&own.parts).filter(|(_, parts)| !parts.is_empty())
            {
                let ty = match result.kind {
                    StepsGradientKind::Stacked => "step_output",
                    StepsGradientKind::First if i == last => "memory",
                    StepsGradientKind::First => continue,
                    StepsGradientKind::Summed => Sum::SCHEMA.name,
                };
                let parts = self.vars(parts.iter().map(String::as_str), &step);
                let to = self.vars([&*result.grad], names);
                self.link(ty, parts, to, inner);
            }
        }
    }
}
