//! Trip counts of loops, by constant propagation of integers that are counted up and compared: the condition and the
//! loop-carried integers that it depends on are computed step by step until it no longer holds.

use rustc_hash::FxHashMap;

use autobwd_core::{
    __private::internals::*,
    BlockCall, BlockId, Dim, OpDesc, OpInfoMap, Program, StepCount, Var, VarKind,
    operators::{
        Assign, ElementwiseAdd, ElementwiseMul, ElementwiseSub, Equal, FillConstant, GreaterEqual,
        GreaterThan, Increment, LessEqual, LessThan, LogicalAnd, LogicalNot, LogicalOr, NotEqual, Scale,
    },
};

/// Maximum trip count, and maximum length of a chain of operators; beyond, the count is unknown.
const MAX_STEPS: usize = 1 << 16;
const MAX_CHAIN: usize = 1 << 8;

/// The number of times that an operator runs its block while a condition holds, or the reason why it is unknown.
///
/// # Errors
/// It is unknown.
pub fn trips(
    ops: &OpInfoMap,
    program: &Program,
    (block, index): (BlockId, usize),
    call: &BlockCall,
) -> Result<usize, String> {
    let StepCount::While(condition) = call.steps else { return Err("the operator is not a loop".into()) };
    let is_list = |var: Var| program.lookup(block, var).is_some_and(|d| d.kind == VarKind::TensorArray);
    let ops_of = |block: BlockId| program.block(block).map_or(&[][..], |block| &block.ops);
    let is_read = |var: Var| ops_of(block)[index].reads().any(|v| v == var);
    let uses = |op: &OpDesc, var: Var| op.reads().chain(op.writes()).any(|v| v == var);
    for var in call.carried.iter().map(|carried| carried.start) {
        let name = program.name(var);
        if is_list(var) || !is_read(var) {
            return Err(format!("`{name}` is a tensor array, or has no value before the first step"));
        }
        let mut changed = ops_of(call.block).iter().skip_while(|op| op.writes().all(|v| v != var));
        if changed.any(|op| op.attrs.blocks().next().is_some() && uses(op, var)) {
            return Err(format!("a block within the body uses `{name}` after it has changed"));
        }
    }
    let known = KnownIntegers { ops, program };
    let body = ops_of(call.block).len();
    let carried = |var: Var| call.carried.iter().any(|c| c.start == var);
    // The known values of loop-carried variables, before and after the step.
    let mut current = FxHashMap::from_iter([(condition, known.value(block, index, condition, 0)?)]);
    for steps in 0..=MAX_STEPS {
        if current[&condition] == 0 {
            return Ok(steps);
        }
        let (mut next, mut open) = (FxHashMap::default(), vec![condition]);
        while let Some(var) = open.pop() {
            let value = known.within(call.block, body, var, 0, &mut |var| {
                if !carried(var) {
                    return known.value(block, index, var, 0);
                }
                if let Some(value) = current.get(&var) {
                    return Ok(*value);
                }
                let first = known.value(block, index, var, 0)?;
                current.insert(var, first);
                Ok(first)
            })?;
            next.insert(var, value);
            open.extend(current.keys().filter(|var| !next.contains_key(*var)));
        }
        current = next;
    }
    Err(format!("the loop takes more than {MAX_STEPS} steps"))
}

struct KnownIntegers<'a> {
    ops: &'a OpInfoMap,
    program: &'a Program,
}

impl KnownIntegers<'_> {
    /// The integer that a variable holds before that operator.
    fn value(&self, block: BlockId, before: usize, var: Var, depth: usize) -> Result<i64, String> {
        self.within(block, before, var, depth, &mut |var| {
            let unknown = || format!("`{}` is an input of the program", self.program.name(var));
            let parent = self.program.block(block).and_then(|block| block.parent).ok_or_else(unknown)?;
            let mut outer_ops =
                self.program.block(parent).into_iter().flat_map(|block| block.ops.iter().enumerate());
            let (at, op) =
                outer_ops.find(|(_, op)| op.attrs.blocks().any(|b| b == block)).ok_or_else(unknown)?;
            let call = self.ops.get(&op.ty).and_then(|info| info.call(op, self.program)).ok().flatten();
            let reads = call.is_some_and(|call| call.reads.contains(&var));
            if reads { self.value(parent, at, var, depth + 1) } else { Err(unknown()) }
        })
    }

    /// The same, in terms of the block's inputs.
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
        if !is_number || depth > MAX_CHAIN {
            return Err(format!("`{name}` is not one integer"));
        }
        let ops = self.program.block(block).map_or(&[][..], |block| &block.ops);
        let Some(at) = ops[..before.min(ops.len())].iter().rposition(|op| op.writes().any(|v| v == var))
        else {
            return found(var);
        };
        let op = &ops[at];
        let unknown = || format!("`{name}` is computed by operator `{}`", op.ty);
        let mut input = |var: Var| self.within(block, at, var, depth + 1, found);
        let fill = op.as_op::<FillConstant>().filter(|fill| fill.value_tensor.is_none());
        let value = if let Some(fill) = fill {
            if fill.str_value.is_empty() {
                as_integer(fill.value.into())
            } else {
                fill.str_value.parse().ok()
            }
        } else if let Some(Assign { x, .. }) = op.as_op() {
            Some(input(x)?)
        } else if let Some(Increment { x, step, .. }) = op.as_op() {
            input(x)?.checked_add(as_integer(step).ok_or_else(unknown)?)
        } else if let Some(scale) = op.as_op::<Scale>() {
            scaled(input(scale.x)?, &scale)
        } else if let Some(LogicalNot { x, .. }) = op.as_op() {
            Some(i64::from(input(x)? == 0))
        } else if let Some(([x, y], of_two)) = binary_integer_fn(op) {
            of_two(input(x)?, input(y)?)
        } else {
            None
        };
        value.ok_or_else(unknown)
    }
}

fn as_integer(x: f64) -> Option<i64> {
    (x.fract() == 0.0).then_some(x as i64)
}

fn scaled(x: i64, by: &Scale) -> Option<i64> {
    let (scale, bias) = (as_integer(by.scale)?, as_integer(by.bias)?);
    match by.bias_after_scale {
        true => x.checked_mul(scale)?.checked_add(bias),
        false => x.checked_add(bias)?.checked_mul(scale),
    }
}

type BinaryIntegerFn = fn(i64, i64) -> Option<i64>;

/// The operands of an operator on two numbers, and its function.
fn binary_integer_fn(op: &OpDesc) -> Option<([Var; 2], BinaryIntegerFn)> {
    let of_two: BinaryIntegerFn = if op.is::<ElementwiseAdd>() {
        i64::checked_add
    } else if op.is::<ElementwiseSub>() {
        i64::checked_sub
    } else if op.is::<ElementwiseMul>() {
        i64::checked_mul
    } else if op.is::<LessThan>() {
        |x, y| Some(i64::from(x < y))
    } else if op.is::<LessEqual>() {
        |x, y| Some(i64::from(x <= y))
    } else if op.is::<GreaterThan>() {
        |x, y| Some(i64::from(x > y))
    } else if op.is::<GreaterEqual>() {
        |x, y| Some(i64::from(x >= y))
    } else if op.is::<Equal>() {
        |x, y| Some(i64::from(x == y))
    } else if op.is::<NotEqual>() {
        |x, y| Some(i64::from(x != y))
    } else if op.is::<LogicalAnd>() {
        |x, y| Some(i64::from(x != 0 && y != 0))
    } else if op.is::<LogicalOr>() {
        |x, y| Some(i64::from(x != 0 || y != 0))
    } else {
        return None;
    };
    // Slots are in alphabetical order: X, Y.
    let mut operands = op.reads();
    Some(([operands.next()?, operands.next()?], of_two))
}
