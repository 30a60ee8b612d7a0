//! Reports of plans: a table, and a drawing of buffers over time.

use std::fmt::{self, Write as _};

use crate::{FusionGroup, IterationSpace, Plan, ValueSource};
use autobwd_core::{BlockId, OpDesc, Program, Site};

/// The plan of a program, known before it runs. `Executor::plan` returns it.
///
/// `Display` writes it as a table, [`to_svg`](PlanReport::to_svg) as a drawing.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlanReport {
    instructions: Vec<PlannedInstruction>,
    tail: Option<String>,
    buffers: Vec<PlannedBuffer>,
    arena_bytes: usize,
    live_bytes: usize,
}

/// One call at run time: a kernel, or one or several fused kernels.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlannedInstruction {
    /// Types of the operators, in the order in which they run.
    pub operators: Vec<String>,
    /// Source lines of these operators, such as `src/main.rs:12`; empty for an operator without one.
    pub sources: Vec<String>,
    /// The variables that these operators write.
    pub writes: Vec<String>,
    /// Dtype and shape of a fused kernel's iteration space; empty for a kernel, several entries for horizontally fused
    /// fused kernels.
    pub spaces: Vec<String>,
    /// Whether it computes constants: once, not in every run.
    pub once: bool,
}

/// A buffer of the arena.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlannedBuffer {
    /// The variables that use it, one after another.
    pub variables: Vec<String>,
    /// Its size in bytes, in whole cache lines.
    pub bytes: usize,
    /// Its offset in bytes.
    pub offset: usize,
    /// The first instruction of its lifetime.
    pub first: usize,
    /// The last instruction of its lifetime; the number of instructions if it is needed afterwards.
    pub last: usize,
}

impl PlanReport {
    #[doc(hidden)]
    pub fn new(program: &Program, plan: &Plan) -> PlanReport {
        let nodes = |group: &FusionGroup| plan.graph.instructions[group.nodes.clone()].iter();
        let extent = |IterationSpace { dtype, dims }: &IterationSpace| format!("{dtype} {:?}", &dims[..]);
        let instructions = plan.instruction_groups().map(|(first, groups)| PlannedInstruction {
            operators: groups.iter().flat_map(nodes).map(|node| node.desc.ty.to_string()).collect(),
            sources: groups.iter().flat_map(nodes).map(|node| source(&node.desc)).collect(),
            writes: groups
                .iter()
                .flat_map(nodes)
                .flat_map(|node| node.writes())
                .map(|value| plan.graph.values[value].name(program).to_string())
                .collect(),
            spaces: groups.iter().filter_map(|group| group.space.as_ref()).map(extent).collect(),
            once: first < plan.constants,
        });
        // By group, and one entry for the time after the last.
        let mut instruction_of: Vec<usize> = plan
            .instruction_groups()
            .enumerate()
            .flat_map(|(i, (_, groups))| groups.iter().map(move |_| i))
            .collect();
        instruction_of.push(plan.instruction_groups().count());
        let mut buffers: Vec<PlannedBuffer> = vec![];
        for (buffer, offset, values) in &plan.memory.buffers {
            let mut variables: Vec<String> = vec![];
            for value in values {
                let value = &plan.graph.values[*value];
                let name = match value.source {
                    ValueSource::Scratch => format!("scratch memory `{}`", value.meta.slot()),
                    _ => value.name(program).into(),
                };
                if variables.last().is_none_or(|last| *last != name) {
                    variables.push(name);
                }
            }
            let node = plan.groups.get(buffer.first).map(|group| &plan.graph.instructions[group.nodes.start]);
            let called = node.filter(|node| values.is_empty() && node.sub_block.is_some());
            variables.extend(called.map(|node| format!("arena of the block of `{}`", node.desc.ty)));
            let (bytes, [first, last]) =
                (buffer.bytes, [buffer.first, buffer.last].map(|g| instruction_of[g]));
            buffers.push(PlannedBuffer { variables, bytes, offset: *offset, first, last });
        }
        buffers.sort_by_key(|b| (b.first, b.offset));
        let (arena_bytes, live_bytes) = (plan.memory.arena_bytes, plan.memory.live_bytes);
        let tail = plan.graph.tail.as_ref().and_then(|tail| {
            let op = program.root().ops.get(tail.index)?;
            Some(program.describe_op(BlockId::ROOT, tail.index, op).to_string())
        });
        PlanReport { instructions: instructions.collect(), tail, buffers, arena_bytes, live_bytes }
    }

    /// The instructions, in order.
    pub fn instructions(&self) -> &[PlannedInstruction] {
        &self.instructions
    }

    /// The operator after the instructions if its output shapes depend on data: it and the operators after it are
    /// planned at run time.
    pub fn tail(&self) -> Option<&str> {
        self.tail.as_deref()
    }

    /// The buffers of the arena, by the start of their lifetimes.
    pub fn buffers(&self) -> &[PlannedBuffer] {
        &self.buffers
    }

    /// Bytes of the arena, which holds all values that are neither in the scope nor in block registers. Memory of
    /// fused kernels and scratch memory of kernels are known only after binding: `Session::peak_bytes`.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// The maximum of the sum of live bytes: a lower bound for any arena.
    pub fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    /// The arena over time: instructions from left to right, one box per buffer (width: lifetime, height: size), and a
    /// line for the sum of live bytes. Names are tooltips.
    pub fn to_svg(&self) -> String {
        const SIZE: (f64, f64) = (960.0, 480.0);
        const COLOURS: [&str; 3] = ["#dbe9f6", "#fde3cc", "#d8ecd2"];
        let columns = (self.instructions.len() + 1) as f64;
        let across = |instruction: usize| 60.0 + instruction as f64 / columns * SIZE.0;
        let down = |bytes: usize| 20.0 + (1.0 - bytes as f64 / self.arena_bytes.max(1) as f64) * SIZE.1;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"Helvetica, sans-serif\" \
             font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
            SIZE.0 + 80.0,
            SIZE.1 + 60.0
        );
        for buffer in &self.buffers {
            let (x, y) = (across(buffer.first), down(buffer.offset + buffer.bytes));
            let (width, height) = (across(buffer.last + 1) - x, down(buffer.offset) - y);
            let gradient = buffer.variables.iter().any(|name| name.contains("@GRAD"));
            let fill = match buffer.first == 0 && buffer.last == self.instructions.len() {
                true => COLOURS[2],
                false => COLOURS[usize::from(gradient)],
            };
            let title = escaped(&format!("{}: {} bytes", buffer.variables.join(", "), buffer.bytes));
            _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\" \
                 stroke=\"#666666\" stroke-width=\"0.5\"><title>{title}</title></rect>"
            );
        }
        let mut line = String::new();
        for (instruction, bytes) in self.live_bytes_by_instruction().into_iter().enumerate() {
            let (left, right, y) = (across(instruction), across(instruction + 1), down(bytes));
            _ = write!(line, "{left:.1},{y:.1} {right:.1},{y:.1} ");
        }
        _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"#b03030\" stroke-width=\"1.5\"/>",
            line.trim()
        );
        for share in 0..=4 {
            let bytes = self.arena_bytes * share / 4;
            let y = down(bytes);
            _ = writeln!(
                svg,
                "<text x=\"56\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                y + 4.0,
                kilobytes(bytes)
            );
        }
        let (below, middle) = (SIZE.1 + 45.0, 60.0 + SIZE.0 / 2.0);
        let instructions = self.instructions.len();
        _ = writeln!(
            svg,
            "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">{instructions} instructions; blue: values, orange: \
             gradients, green: whole run; red: sum of what is needed</text>\n</svg>"
        );
        svg
    }

    /// By instruction, and one entry for the time after the last: live bytes.
    pub fn live_bytes_by_instruction(&self) -> Vec<usize> {
        let mut live = vec![0; self.instructions.len() + 1];
        for buffer in &self.buffers {
            live[buffer.first..=buffer.last].iter_mut().for_each(|bytes| *bytes += buffer.bytes);
        }
        live
    }
}

fn kilobytes(bytes: usize) -> String {
    format!("{:.1} KB", bytes as f64 / 1e3)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The source line of an operator.
fn source(op: &OpDesc) -> String {
    match &op.site {
        None => String::new(),
        Some(Site::Here(at)) => format!("{}:{}", at.file(), at.line()),
        Some(Site::Loaded(at)) => at.to_string(),
    }
}

impl PlannedInstruction {
    /// The types of the operators, each once: `tanh + scale`.
    pub fn summary(&self) -> String {
        let mut types: Vec<&str> = vec![];
        for ty in &self.operators {
            if !types.contains(&ty.as_str()) {
                types.push(ty);
            }
        }
        types.join(" + ")
    }
}

/// `tanh, scale (3 times)`
fn summary(operators: &[String]) -> String {
    let runs = operators.chunk_by(|a, b| a == b);
    let text = runs.map(|run| match run.len() {
        1 => run[0].clone(),
        n => format!("{} ({n} times)", run[0]),
    });
    text.collect::<Vec<_>>().join(", ")
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>5}  {:>12}  runs", "instruction", "live bytes")?;
        for (i, (instruction, live)) in
            self.instructions.iter().zip(self.live_bytes_by_instruction()).enumerate()
        {
            write!(f, "{i:>5}  {live:>12}  {}", summary(&instruction.operators))?;
            match &instruction.spaces[..] {
                [extent] if instruction.operators.len() > 1 => write!(f, "; one pass over {extent}")?,
                [] | [_] => {}
                several => write!(f, "; side by side over {}", several.join(", "))?,
            }
            writeln!(f, "{}", if instruction.once { "; once" } else { "" })?;
        }
        if let Some(tail) = &self.tail {
            writeln!(f, "then {tail} and what is behind it, planned when they run")?;
        }
        writeln!(f, "{:>12}  {:>12}  {:>11}  holds", "at", "bytes", "instructions")?;
        for buffer in &self.buffers {
            let PlannedBuffer { variables, bytes, offset, first, last } = buffer;
            let life = if last == first { first.to_string() } else { format!("{first} to {last}") };
            writeln!(f, "{offset:>12}  {bytes:>12}  {life:>11}  {}", variables.join(", "))?;
        }
        let (arena, live) = (self.arena_bytes, self.live_bytes);
        writeln!(f, "arena of {arena} bytes; at most {live} are needed at the same time")
    }
}
