//! Samples of `rnn`.

use autobwd::{DType, check::*};

use super::{RnnAttrs, RnnLayers, RnnMode, layout::parameters};

autobwd::samples!(
    RnnLayers,
    [
        rnn([3, 2], layers(RnnMode::Lstm, 1)),
        rnn([3, 2], layers(RnnMode::Gru, 1).input_size(5)),
        rnn([3, 2], layers(RnnMode::Tanh, 1)),
        rnn([3, 2], layers(RnnMode::Relu, 1)),
        rnn([2, 3], layers(RnnMode::Lstm, 2).is_bidirec(true).hidden_size(1)),
        rnn([2, 3], layers(RnnMode::Gru, 2).is_bidirec(true).hidden_size(1)),
        rnn([2, 3], layers(RnnMode::Tanh, 2).is_bidirec(true)),
        rnn([2, 3], layers(RnnMode::Relu, 2).is_bidirec(true)),
        with_lengths(rnn([3, 4], layers(RnnMode::Lstm, 1).is_bidirec(true)), [3.0, 1.0, 0.0, 2.0]),
        with_lengths(rnn([3, 4], layers(RnnMode::Gru, 2)), [2.0, 9.0, -1.0, 1.0]),
        with_lengths(rnn([3, 4], layers(RnnMode::Gru, 1).is_bidirec(true)), [2.0, 3.0, 1.0, 1.0]),
        with_lengths(rnn([3, 2], layers(RnnMode::Lstm, 2)), [1.0, 2.0]),
        with_lengths(rnn([3, 2], layers(RnnMode::Tanh, 2).is_bidirec(true)), [1.0, 2.0]),
        with_lengths(rnn([3, 2], layers(RnnMode::Relu, 1).is_bidirec(true)), [1.0, 2.0]),
        rnn([2, 3], layers(RnnMode::Tanh, 3)),
        rnn([2, 3], layers(RnnMode::Tanh, 3).dropout_prob(0.25_f32).seed(5)),
        rnn([2, 3], layers(RnnMode::Gru, 2).dropout_prob(0.5_f32).is_bidirec(true).hidden_size(1)),
        rnn([2, 3], layers(RnnMode::Tanh, 2).dropout_prob(1.0_f32)),
        rnn([2, 3], layers(RnnMode::Tanh, 1).dropout_prob(0.5_f32)),
        rnn([2, 3], layers(RnnMode::Lstm, 2).dropout_prob(0.5_f32).is_test(true)),
        rnn([2, 3], layers(RnnMode::Gru, 1).is_bidirec(true).is_test(true)),
        RnnLayers {
            dropout_state: None,
            ..rnn([2, 3], layers(RnnMode::Tanh, 2).dropout_prob(0.25_f32).seed(-1))
        },
        // Wider than a vector register, with a remainder.
        rnn([2, 1], layers(RnnMode::Gru, 1).hidden_size(9)),
        rnn([2, 0], layers(RnnMode::Lstm, 2)),
        rnn([0, 3], layers(RnnMode::Lstm, 1)).fails("`Input`: at least one step is needed"),
        RnnLayers { input: uniform([3, 2]), ..rnn([3, 2], layers(RnnMode::Lstm, 1)) }
            .fails("`Input`: 3 dimensions are needed"),
        RnnLayers { input: integers_below(9, [3, 2, 4]), ..rnn([3, 2], layers(RnnMode::Lstm, 1)) }
            .fails("`Input`: floating point numbers are needed"),
        RnnLayers { input: uniform([3, 2, 5]), ..rnn([3, 2], layers(RnnMode::Lstm, 1)) }
            .fails("`Input`: steps of `input_size` = 3 elements are needed"),
        RnnLayers { pre_state: vec![uniform([1, 2, 2])], ..rnn([3, 2], layers(RnnMode::Lstm, 1)) }
            .fails("`PreState`: 2 variables are needed, not 1"),
        RnnLayers { pre_state: vec![uniform([2, 2, 2])], ..rnn([3, 2], layers(RnnMode::Gru, 1)) }
            .fails("`PreState`: [1, 2, 2] is needed, a number for each unit"),
        RnnLayers { state: vec![], ..rnn([3, 2], layers(RnnMode::Gru, 1)) }
            .fails("`State`: 1 variables are needed, not 0"),
        RnnLayers { weight_list: vec![uniform([6, 3])], ..rnn([3, 2], layers(RnnMode::Gru, 1)) }
            .fails("`WeightList`: 4 variables are needed, not 1"),
        RnnLayers {
            weight_list: vec![uniform([6, 3]), uniform([6, 3]), uniform([6]), uniform([6])],
            ..rnn([3, 2], layers(RnnMode::Gru, 1))
        }
        .fails("`WeightList`: [6, 2] is needed for number 1 of the list"),
        RnnLayers { sequence_length: Some(integers_below(3, [3])), ..rnn([3, 2], layers(RnnMode::Gru, 1)) }
            .fails("`SequenceLength`: [2] is needed, a length for each sequence"),
        RnnLayers { sequence_length: Some(uniform([2])), ..rnn([3, 2], layers(RnnMode::Gru, 1)) }
            .fails("`SequenceLength`: int64 or int32 is needed"),
        rnn([3, 2], layers(RnnMode::Lstm, 2).dropout_prob(1.5_f32)).fails("attribute `dropout_prob`"),
    ]
);

/// Layers of 2 units for inputs of 3 elements.
fn layers(mode: RnnMode, num_layers: i32) -> RnnAttrs {
    RnnAttrs { mode, num_layers, input_size: 3, hidden_size: 2, ..RnnAttrs::default() }
}

fn rnn([steps, batch]: [usize; 2], rnn: RnnAttrs) -> RnnLayers<Draw> {
    let parts = rnn.num_layers as usize * rnn.directions();
    let parameter = |i: usize| match *parameters(&rnn, i).known().unwrap_or_default() {
        [rows, cols] => uniform([rows, cols]),
        [rows] => uniform([rows]),
        _ => uniform([]),
    };
    let states = rnn.mode.states();
    RnnLayers {
        input: uniform([steps, batch, rnn.input_size as usize]),
        pre_state: (0..states).map(|_| uniform([parts, batch, rnn.hidden_size as usize])).collect(),
        weight_list: (0..4 * parts).map(parameter).collect(),
        sequence_length: None,
        out: out(),
        dropout_state: Some(out()),
        state: (0..states).map(|_| out()).collect(),
        reserve: out(),
        rnn,
    }
}

fn with_lengths<const N: usize>(rnn: RnnLayers<Draw>, lengths: [f64; N]) -> RnnLayers<Draw> {
    RnnLayers { sequence_length: Some(given([N], lengths).of(DType::I32)), ..rnn }
}
