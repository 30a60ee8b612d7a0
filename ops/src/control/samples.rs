//! Samples of loops, conditionals and recurrences: small programs.

use autobwd::{Attr, Builder, Expr, Result, check::*};

use super::{ConditionalBlock, Recurrent, While, cond, static_rnn, while_loop};
use crate::{Math, array::number};

/// Sets an attribute of all operators of that type; eager operators have none.
fn set(net: &Builder, op: &str, attr: &'static str, value: Attr) -> Result<()> {
    net.edit(|program| {
        for op in program.root_mut().ops.iter_mut().filter(|desc| &*desc.ty == op) {
            op.attrs.set(attr, value.clone());
        }
        Ok(())
    })
}

/// Three steps of `y ← tanh(w · y) + x`, with a counter.
fn loop_of_three(net: &Builder, x: &[Expr]) -> Vec<Expr> {
    let end = number(net, 3.0);
    let last = while_loop(
        &[x[0].clone(), number(net, 0.0)],
        |v| v[1].less_than(&end),
        |v| vec![(&v[0] * &x[1]).tanh() + &x[0], &v[1] + 1.0],
    );
    vec![last[0].clone()]
}
autobwd::samples!(
    While,
    [
        Sample::of_program::<While>([uniform([2, 3]), uniform([3])], |net, x| Ok(loop_of_three(net, x))),
        Sample::of_program::<While>([uniform([2, 3]), uniform([3])], |net, x| {
            let last = loop_of_three(net, x);
            set(net, "while", "checkpoint_every", Attr::I32(2))?;
            Ok(last)
        }),
        // A loop with no steps.
        Sample::of_program::<While>([uniform([2, 3])], |net, x| {
            let zero = number(net, 0.0);
            Ok(while_loop(&[x[0].clone()], |_| zero.less_than(&zero), |v| vec![v[0].exp()]))
        }),
    ]
);

/// `tanh(x · y)` where the sum of `x` is below a limit, else `x - y`.
fn choice(x: &[Expr], limit: f64) -> Vec<Expr> {
    let sum = x[0].sum(&[]);
    let limit = &sum * 0.0 + limit;
    cond(&sum.less_than(&limit), || vec![(&x[0] * &x[1]).tanh()], || vec![&x[0] - &x[1]])
}
autobwd::samples!(
    ConditionalBlock,
    [
        Sample::of_program::<ConditionalBlock>([uniform([2, 3]), uniform([3])], |_, x| Ok(choice(x, 100.0))),
        Sample::of_program::<ConditionalBlock>([uniform([2, 3]), uniform([3])], |_, x| Ok(choice(x, -100.0))),
        Sample::of_program::<ConditionalBlock>([uniform([2, 3]), uniform([3])], |net, x| {
            let chosen = choice(x, 100.0);
            set(net, "conditional_block", "is_scalar_condition", Attr::Bool(false))?;
            Ok(chosen)
        })
        .fails("attribute `is_scalar_condition`: must be true"),
    ]
);

/// `h ← tanh(h · w + x)`, and the last `h`; without states, `tanh(w · x)`.
fn recurrence(net: &Builder, x: &[Expr], reverse: bool, every: usize) -> Vec<Expr> {
    static_rnn(net, reverse, |rnn| {
        rnn.checkpoint_every(every);
        let step = rnn.step_input(&x[0]);
        let Some(first) = x.get(2) else {
            return rnn.step_output(&(&step * &x[1]).tanh());
        };
        let h = rnn.memory(first);
        let next = (h.matmul(&x[1]) + step).tanh();
        rnn.update_memory(&h, &next);
        rnn.last_output(&h);
        rnn.step_output(&next);
    })
}
autobwd::samples!(
    Recurrent,
    [
        Sample::of_program::<Recurrent>([uniform([4, 2, 3]), uniform([3, 3]), uniform([2, 3])], |net, x| {
            Ok(recurrence(net, x, false, 0))
        }),
        Sample::of_program::<Recurrent>([uniform([4, 2, 3]), uniform([3, 3]), uniform([2, 3])], |net, x| {
            Ok(recurrence(net, x, true, 2))
        }),
        Sample::of_program::<Recurrent>([uniform([4, 2, 3]), uniform([3])], |net, x| {
            let outputs = recurrence(net, x, false, 0);
            set(net, "recurrent", "is_train", Attr::Bool(false))?;
            Ok(outputs)
        }),
    ]
);
