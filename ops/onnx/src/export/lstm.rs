//! LSTMs whose gates are products as recurrent layers, for which ONNX has a node.

use autobwd::{Builder, Expr, New, OpDesc, Program, Result, emit, program::Var};
use autobwd_ops::{
    Math,
    elementwise::ElementwiseAdd,
    filled,
    lstm::LstmSequence,
    matmul::MatmulV2,
    rnn::{RnnAttrs, RnnLayers, RnnMode},
};

/// The product and the bias that gates are computed from.
struct Projection {
    x: Var,
    weight: Var,
    bias: Option<Var>,
}

impl Projection {
    /// The projection that gates, `[steps, batch, 4 * units]`, are the result of, if they are one.
    fn of(program: &Program, ops: &[OpDesc], gates: Var) -> Option<Projection> {
        let rank = |var: Var| program.root().vars.get(&var).map(|desc| desc.dims.len());
        // The operator that computes a value which has not changed since.
        let producer = |var: Var, reads: &dyn Fn(&OpDesc) -> Option<Vec<Var>>| {
            let at = ops.iter().rposition(|op| op.writes().any(|written| written == var))?;
            let read = reads(&ops[at])?;
            let changes = |op: &OpDesc| op.writes().any(|written| read.contains(&written));
            (!ops[at..].iter().any(changes)).then_some(read)
        };
        let sum = producer(gates, &|op| {
            let sum = op.as_op::<ElementwiseAdd>().filter(|sum| rank(sum.y) == Some(1) && sum.axis == -1)?;
            Some(vec![sum.x, sum.y])
        });
        let (of, bias) = sum.map_or((gates, None), |sum| (sum[0], Some(sum[1])));
        let product = producer(of, &|op| {
            let product = op.as_op::<MatmulV2>().filter(|product| !product.trans_x && !product.trans_y)?;
            Some(vec![product.x, product.y])
        })?;
        let (x, weight) = (product[0], product[1]);
        (rank(x) == Some(3) && rank(weight) == Some(2)).then_some(Projection { x, weight, bias })
    }
}

/// The program with recurrent layers in place of LSTMs whose cell states and activations are not read.
///
/// # Errors
/// The errors of the layers' shape rules.
pub(super) fn as_layers(program: &Program, is_read: impl Fn(Var) -> bool) -> Result<Program> {
    let net = Builder::new();
    net.set_program(program.clone());
    for (at, op) in program.root().ops.iter().enumerate().rev() {
        let lstm =
            op.as_op::<LstmSequence>().filter(|lstm| !is_read(lstm.cell) && !is_read(lstm.activations));
        let Some(lstm) = lstm else { continue };
        let Some(projection) = Projection::of(program, &program.root().ops[..at], lstm.gates) else {
            continue;
        };
        // Layers that have been put into the program are longer than what they replace.
        let count = net.program()?.root().ops.len();
        if layer(&net, &lstm, &projection) {
            net.edit(|program| {
                let mut layer = program.root_mut().ops.split_off(count);
                layer.iter_mut().for_each(|part| part.site = op.site);
                program.root_mut().ops.splice(at..=at, layer);
                Ok(())
            })?;
        }
    }
    Ok(net.program()?.clone())
}

/// Appends a layer that computes the hidden states of an LSTM; `false` if sizes are not known or there is no step.
fn layer(net: &Builder, lstm: &LstmSequence, projection: &Projection) -> bool {
    let [x, weight, recurrent, gates] =
        [projection.x, projection.weight, lstm.weight, lstm.gates].map(|var| net.existing(var));
    let known = |x: &Expr, axis: i32| i32::try_from(x.dim(axis).known()?).ok().filter(|n| *n > 0);
    let (Some(input_size), Some(hidden_size)) = (known(&weight, 0), known(&recurrent, 0)) else {
        return false;
    };
    if gates.dim(0).known() == Some(0) {
        return false;
    }
    let units = || i64::from(hidden_size).into();
    let zeros = |dims: &[_]| filled(net, gates.dtype(), "0", dims);
    let no_bias = zeros(&[(4 * i64::from(hidden_size)).into()]);
    let bias = projection.bias.map_or(no_bias.clone(), |bias| net.existing(bias));
    let first = |given: Option<Var>| match given {
        Some(given) => net.existing(given).unsqueeze(&[0]),
        None => zeros(&[1.into(), gates.dim(1), units()]),
    };
    let weights = [weight.transpose(&[1, 0]), recurrent.transpose(&[1, 0]), bias, no_bias];
    let _ = emit(RnnLayers {
        input: (&x).into(),
        pre_state: [lstm.initial_hidden, lstm.initial_cell].map(|given| first(given).into()).into(),
        weight_list: weights.map(Into::into).into(),
        sequence_length: None,
        out: (&net.existing(lstm.hidden)).into(),
        dropout_state: None,
        state: vec![New, New],
        reserve: New,
        rnn: RnnAttrs { input_size, hidden_size, mode: RnnMode::Lstm, is_test: true, ..RnnAttrs::default() },
    });
    true
}
