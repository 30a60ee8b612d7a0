//! How often a loop runs, where that follows from constants: whole numbers that are counted up and compared.

use rustc_hash::FxHashMap;

use autobwd_core::{
    Attr, AttrValue, BlockId, Call, Dim, OpDesc, OpInfoMap, Program, StepCount, Var, VarKind,
};

/// Loops of more steps count as unknown; so do numbers that so many operators in a row lead to.
const MOST: usize = 1 << 16;
const DEPTH: usize = 1 << 8;

/// How often that operator runs its block while a condition holds, or why that is not known.
pub(super) fn trips(
    ops: &OpInfoMap,
    program: &Program,
    (block, index): (BlockId, usize),
    call: &Call,
) -> Result<usize, String> {
    let StepCount::While(condition) = call.steps else { return Err("it is no loop".into()) };
    let is_list = |var: Var| program.lookup(block, var).is_some_and(|d| d.kind == VarKind::TensorArray);
    let ops_of = |block: BlockId| program.block(block).map_or(&[][..], |block| &block.ops);
    let is_read = |var: Var| ops_of(block)[index].reads().any(|v| v == var);
    let uses = |op: &OpDesc, var: Var| op.reads().chain(op.writes()).any(|v| v == var);
    for var in call.carried.iter().map(|carried| carried.start) {
        let name = program.name(var);
        if is_list(var) || !is_read(var) {
            return Err(format!("`{name}` is a list, or has no value before the first step"));
        }
        let mut changed = ops_of(call.block).iter().skip_while(|op| op.writes().all(|v| v != var));
        if changed.any(|op| op.attrs.blocks().next().is_some() && uses(op, var)) {
            return Err(format!("a block within its body uses `{name}` when that has changed"));
        }
    }
    let known = Known { ops, program };
    let body = ops_of(call.block).len();
    let carried = |var: Var| call.carried.iter().any(|c| c.start == var);
    // What counts of what goes from step to step, now and after the step.
    let mut now = FxHashMap::from_iter([(condition, known.value(block, index, condition, 0)?)]);
    for steps in 0..=MOST {
        if now[&condition] == 0 {
            return Ok(steps);
        }
        let (mut next, mut open) = (FxHashMap::default(), vec![condition]);
        while let Some(var) = open.pop() {
            let value = known.within(call.block, body, var, 0, &mut |var| {
                if !carried(var) {
                    return known.value(block, index, var, 0);
                }
                if let Some(value) = now.get(&var) {
                    return Ok(*value);
                }
                let first = known.value(block, index, var, 0)?;
                now.insert(var, first);
                Ok(first)
            })?;
            next.insert(var, value);
            open.extend(now.keys().filter(|var| !next.contains_key(*var)));
        }
        now = next;
    }
    Err(format!("it takes more than {MOST} steps"))
}

struct Known<'a> {
    ops: &'a OpInfoMap,
    program: &'a Program,
}

impl Known<'_> {
    /// The number that a variable holds before that operator.
    fn value(&self, block: BlockId, before: usize, var: Var, depth: usize) -> Result<i64, String> {
        self.within(block, before, var, depth, &mut |var| {
            let unknown = || format!("`{}` is given from outside", self.program.name(var));
            let parent = self.program.block(block).and_then(|block| block.parent).ok_or_else(unknown)?;
            let mut around =
                self.program.block(parent).into_iter().flat_map(|block| block.ops.iter().enumerate());
            let (at, op) =
                around.find(|(_, op)| op.attrs.blocks().any(|b| b == block)).ok_or_else(unknown)?;
            let call = self.ops.get(&op.ty).and_then(|info| info.call(op, self.program)).ok().flatten();
            let reads = call.is_some_and(|call| call.reads.contains(&var));
            if reads { self.value(parent, at, var, depth + 1) } else { Err(unknown()) }
        })
    }

    /// The same, in terms of what the block finds.
    fn within(
        &self,
        block: BlockId,
        before: usize,
        var: Var,
        depth: usize,
        found: &mut dyn FnMut(Var) -> Result<i64, String>,
    ) -> Result<i64, String> {
        let name = self.program.name(var);
        let is_number = self
            .program
            .lookup(block, var)
            .is_some_and(|desc| !desc.dtype.is_float() && desc.dims.numel() == Dim::from(1));
        if !is_number || depth > DEPTH {
            return Err(format!("`{name}` is not one whole number"));
        }
        let ops = self.program.block(block).map_or(&[][..], |block| &block.ops);
        let Some(at) = ops[..before.min(ops.len())].iter().rposition(|op| op.writes().any(|v| v == var))
        else {
            return found(var);
        };
        let op = &ops[at];
        let unknown = || format!("`{name}` comes from operator `{}`", op.ty);
        let mut input = |slot: &str| match op.inputs.get(slot) {
            [var] => self.within(block, at, *var, depth + 1, found),
            _ => Err(unknown()),
        };
        let whole = |attr: &str, default: f64| {
            let number = op.attrs.get(attr).map_or(Ok(default), f64::from_attr);
            number.ok().filter(|x| x.fract() == 0.0).map(|x| x as i64).ok_or_else(unknown)
        };
        let value = match &*op.ty {
            "fill_constant" => match op.attrs.get("str_value") {
                Some(Attr::Str(text)) if !text.is_empty() => text.parse().ok(),
                _ => Some(whole("value", 0.0)?),
            },
            "assign" => Some(input("X")?),
            "increment" => input("X")?.checked_add(whole("step", 1.0)?),
            "scale" => {
                let (x, scale, bias) = (input("X")?, whole("scale", 1.0)?, whole("bias", 0.0)?);
                match op.attrs.get("bias_after_scale") {
                    Some(Attr::Bool(false)) => x.checked_add(bias).and_then(|x| x.checked_mul(scale)),
                    _ => x.checked_mul(scale).and_then(|x| x.checked_add(bias)),
                }
            }
            "logical_not" => Some(i64::from(input("X")? == 0)),
            ty => two(ty, input("X")?, input("Y")?),
        };
        value.ok_or_else(unknown)
    }
}

/// What an operator makes of two numbers.
fn two(ty: &str, x: i64, y: i64) -> Option<i64> {
    let holds = match ty {
        "elementwise_add" => return x.checked_add(y),
        "elementwise_sub" => return x.checked_sub(y),
        "elementwise_mul" => return x.checked_mul(y),
        "less_than" => x < y,
        "less_equal" => x <= y,
        "greater_than" => x > y,
        "greater_equal" => x >= y,
        "equal" => x == y,
        "not_equal" => x != y,
        "logical_and" => x != 0 && y != 0,
        "logical_or" => x != 0 || y != 0,
        _ => return None,
    };
    Some(i64::from(holds))
}
