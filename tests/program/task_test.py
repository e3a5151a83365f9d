"""Tests of the way from the configuration to what an algorithm is built from."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import averaged_model
from tff_noise.algorithms import catalog
from tff_noise.clients import label_loss
from tff_noise.clients import program
from tff_noise.federated import computation
from tff_noise.federated import optimizer
from tff_noise.models import keras_model
from tff_noise.models import losses
from tff_noise.privacy import protection
from tff_noise.program import data
from tff_noise.program import flags
from tff_noise.program import private_labels
from tff_noise.program import task


def _prepared(*arguments):
  config = flags.config_from(
      flags.parse(['train', '--method=fedavg', '--clients=4', '--clients_per_round=2', *arguments])
  )
  dataset = data.load_dataset(config)
  scene = data.load_scene(config, dataset, None)
  return dataset, lambda *key: task.prepare(config, dataset, scene, *key)


# ClipFL, which does not say that it shows clients' models.
QUIET = catalog.ALGORITHMS['clipfl']._replace(
    name='quiet', place='tff_noise.algorithms.clipfl:build', per_client=''
)


# Entries that forget what their methods do.
FORGETS_MODELS, FORGETS_LABELS = (
    catalog.ALGORITHMS[name]._replace(
        name=f'own_{name}', place=f'tff_noise.algorithms.{name}:build', compares_models=False,
        corrects_labels=False, stages=(),
    )
    for name in ('fednoro', 'fedelc')
)
HAS_NO_STAGES = catalog.ALGORITHMS['gce']._replace(
    name='own_gce', place='tff_noise.algorithms.gce:build', stages=('warm_up', 'train')
)


def _own_loss(task_, loss):
  program_ = program.ClientProgram(loss=loss)
  return algorithm.of_rounds(task_, computation.train('a round of train', task_, program_))


def with_the_form(task_, _):
  form = task_.training.loss
  return _own_loss(task_, lambda s: losses.cross_entropy(s.logits, s.labels, form))


def without_the_form(task_, _):
  return _own_loss(task_, lambda s: losses.cross_entropy(s.logits, s.labels))


def with_adjusted_logits(task_, _):
  program_ = label_loss.client(losses.cross_entropy, task_.training)
  return algorithm.of_rounds(task_, computation.train('a round of train', task_, program_))


def with_a_part_of_the_form(task_, _):
  form = types.CrossEntropy(temperature=task_.training.loss.temperature)
  return _own_loss(task_, lambda s: losses.cross_entropy(s.logits, s.labels, form))


TAKES, IGNORES, ADJUSTS, PART = (
    catalog.ALGORITHMS['fedavg']._replace(name=n, place=f'{__name__}:{n}')
    for n in (
        'with_the_form', 'without_the_form', 'with_adjusted_logits', 'with_a_part_of_the_form'
    )
)


def on_its_own_optimizer(task_, _):
  mine = optimizer.FederatedOptimizer(
      optimizer.apply_update(
          tff.learning.optimizers.build_sgdm(1.0, momentum=0.9), task_.model.weights_type
      )
  )
  plain = program.ClientProgram(loss=lambda s: losses.cross_entropy(s.logits, s.labels))
  return algorithm.of_rounds(task_, computation.train('train', task_, plain, optimizer=mine))


ON_ITS_BASE, ON_ITS_OWN = (
    catalog.ALGORITHMS['gce']._replace(
        name=n, place=f'{__name__}:{n}', params=catalog.ALGORITHMS['fedavg'].params, takes_base=True
    )
    for n in ('with_the_form', 'on_its_own_optimizer')
)


class _Unregistered(tf.keras.layers.Layer):

  def call(self, inputs):
    return tf.cast(inputs, tf.float32)


def _of_layer(shape, units, layer, dtype='uint8'):
  x = tf.keras.Input(shape, dtype=dtype)
  features = tf.keras.layers.Flatten()(layer(x))
  return tf.keras.Model(x, [tf.keras.layers.Dense(units)(features), features])


def own(shape, classes, **_):
  return _of_layer(shape, classes, tf.keras.layers.Rescaling(1 / 16))


def takes_floats(shape, classes, **_):
  return _of_layer(shape, classes, tf.keras.layers.Rescaling(1 / 16), 'float32')


def has_three_logits(shape, classes, **_):
  del classes
  return _of_layer(shape, 3, tf.keras.layers.Rescaling(1 / 16))


def is_for_other_images(shape, classes, **_):
  del shape
  return _of_layer((28, 28, 1), classes, tf.keras.layers.Rescaling(1 / 16))


def is_not_registered(shape, classes, **_):
  return _of_layer(shape, classes, _Unregistered())


def casts(shape, classes, **_):
  return _of_layer(shape, classes, lambda x: tf.cast(x, tf.float32))


def sets_weights(*args, **_):
  network = own(*args)
  network.set_weights([w + 0.01 for w in network.get_weights()])
  return network


def takes_nothing():
  pass


def returns_nothing(*args, **_):
  del args


class TaskTest(federated_test_case.FederatedTestCase):

  def test_cohorts_follow_from_the_key_of_noise_or_from_the_seed(self):
    _, prepare = _prepared('--client_dp_noise=1', '--noise_source=system', '--seed=3')
    drawn = {prepare(key).task.cohort_seed for key in (bytes(32), bytes(32), b'1' * 32)}
    self.assertLen(drawn, 2)
    self.assertNotIn(3, drawn)
    _, prepare = _prepared('--client_dp_noise=1', '--seed=3')
    self.assertEqual(prepare().task.cohort_seed, 3)

  def test_builds_models_of_other_architectures_for_the_same_images(self):
    dataset, prepare = _prepared('--public_dataset=digits', '--public_examples=7')
    found = prepare().task
    for name, features in (('mlp', 128), ('cnn', 128)):
      model = found.build_model(name)
      self.assertEqual((model.num_classes, model.input_shape), (10, dataset.image_shape))
      self.assertEqual(model.num_features, features)
      self.assertEqual(model.data_type, found.model.data_type)
    np.testing.assert_array_equal(found.public, dataset.public)
    with self.assertRaisesRegex(types.UsageError, "^there is no model 'lenet', .* mlp, cnn, "):
      found.build_model('lenet')

  def test_features_are_for_models_that_take_them(self):
    draw = np.random.default_rng(0)
    path = self.create_tempfile('data.npz').full_path
    np.savez(path, x=draw.normal(size=(40, 3)), y=np.arange(40) % 2)
    given = ('--dataset=npz', f'--data_dir={path}')
    model = _prepared(*given)[1]().task.model
    self.assertEqual(str(model.data_type), '<x=float32[?,3],y=int32[?],client=int32>*')
    for name in ('cnn', 'resnet18', 'vit_tiny'):
      with self.assertRaisesRegex(types.UsageError, f'--model={name} takes images, and the data'):
        _prepared(*given, f'--model={name}')[1]()

  @parameterized.parameters(
      ('FORGETS_MODELS', ('--aggregation=secure_sum', '--allow_per_client_disclosure'),
       'aggregation=secure_sum: the server of .* sees the models of single clients'),
      ('FORGETS_LABELS',
       ('--training_labels=private', '--allow_per_client_disclosure'),
       'training_labels=private: clients of'),
      ('HAS_NO_STAGES', ('--stages=warm_up:2,train:3',),
       'stages=[a-z_]*:...: .* has no stage of that name'),
  )
  def test_flags_that_an_entry_lets_through_and_its_method_does_not_read(self, entry, given, why):
    method = f'--method={__name__}:{entry}'
    with self.assertRaisesRegex(types.UsageError, f'^--{why}'):
      _prepared(method, '--rounds=10', *given)[1]()

  def test_a_model_of_ones_own(self):
    model = _prepared(f'--model={__name__}:own')[1]().task.model
    self.assertEqual((model.num_classes, model.num_features), (10, 64))

  @parameterized.parameters(
      ('takes_floats', 'takes float32, and the data are uint8: give its tf.keras.Input that'),
      ('is_for_other_images', r'takes images or features of the shape .28, 28, 1., and'),
      ('has_three_logits', 'has 3 logits for 10 classes'),
      ('is_not_registered', 'cannot be built from its configuration, as clients do .*: register'),
      ('casts', 'cannot be built from its configuration, as clients do .*JSON.*: register'),
      ('sets_weights', 'its function sets weights, and a run draws its own from --seed: leave'),
      ('takes_nothing', 'TypeError: .*unexpected keyword.*: it is called as the functions of'),
      ('returns_nothing', 'TypeError: Expected a tf.keras.Model, found NoneType: it is called as'),
  )
  def test_mistakes_of_models_of_ones_own_are_told_in_one_line(self, name, message):
    with self.assertRaisesRegex(types.UsageError, f'^--model={__name__}:{name}:? {message}'):
      _prepared(f'--model={__name__}:{name}')[1]()

  def test_what_builds_models_holds_no_images(self):
    # An algorithm gets it, and is to get no data.
    _, prepare = _prepared('--public_dataset=digits')
    for given in prepare().task.build_model.args:
      if isinstance(given, types.Dataset):
        for name, value in given._asdict().items():
          if isinstance(value, np.ndarray):
            self.assertEqual((len(value), value.base), (0, None), name)
          self.assertNotIsInstance(value, types.Examples)

  @parameterized.parameters(
      ('gaussian', 'mean'), ('tree', 'mean'), ('tree', 'secure_sum'),
      ('discrete_gaussian', 'secure_sum'),
  )
  def test_turns_are_of_all_clients_whoever_adds_the_noise(self, mechanism, aggregation):
    _, prepare = _prepared(
        '--client_dp_noise=1.5', '--client_sampling=cyclic', f'--client_dp_mechanism={mechanism}',
        f'--aggregation={aggregation}',
    )
    prepared = prepare()
    self.assertEqual(prepared.task.sampling, 'cyclic')
    self.assertEqual(
        {field.protection for field in prepared.algorithm.fields},
        {protection.NoisySum(1.5, 1.0, 2, 4, mechanism=mechanism, sampling='cyclic')},
    )

  @parameterized.parameters(('fixed', 2), ('poisson', 4))
  def test_clients_that_keep_something_have_no_cohorts_of_a_fixed_size_to_hide_in(
      self, sampling, population
  ):
    def populations(method):
      _, prepare = _prepared(
          f'--method={method}', '--client_dp_noise=1', f'--client_sampling={sampling}'
      )
      found = [f.protection for f in prepare().algorithm.fields]
      return {p.population for p in found if isinstance(p, protection.NoisySum)}

    self.assertEqual(populations('elr'), {population})
    self.assertEqual(populations('fedavg'), {4})
    target = '--method=elr', '--client_dp_noise=1', '--target_client_epsilon=1000'
    _, prepare = _prepared(*target, f'--client_sampling={sampling}')
    if sampling == 'poisson':
      self.assertEqual(prepare().algorithm.rounds, 100)
      return
    with self.assertRaisesRegex(types.UsageError, '^--target_client_epsilon counts on cohorts'):
      prepare()

  @parameterized.parameters('--training_labels=private', '--client_dp_noise=1')
  def test_a_mean_of_models_is_made_of_what_was_released(self, privacy):
    with_mean, plain = (
        _prepared(privacy, *more)[1]().algorithm for more in (['--average_models=0.8'], [])
    )
    self.assertEqual(with_mean.fields, plain.fields)
    self.assertIn(averaged_model.AVERAGED, with_mean.models)

  @parameterized.parameters('--training_labels=private', '--client_dp_noise=1')
  def test_the_server_has_no_images_of_clients_where_privacy_is_claimed(self, claim):
    # Of the 1437 that may be trained on.
    public = '--public_dataset=digits', '--public_examples=7'
    with self.assertRaisesRegex(types.UsageError, '^--public_dataset: 7 of its images are images'):
      _prepared(claim, *public)[1]()
    self.assertNotEmpty(_prepared(*public)[1]().algorithm.fields)
    self.assertNotEmpty(_prepared(claim, '--validation_fraction=0.1')[1]().algorithm.fields)

  @parameterized.parameters(True, False)
  def test_errors_that_show_data_are_declared(self, shows):
    more = ['--debug_client_errors'] if shows else []
    fields = _prepared('--training_labels=private', *more)[1]().algorithm.fields
    (found,) = [f for f in fields if f.name == 'error messages'] or [None]
    self.assertEqual(found is not None, shows)
    if shows:
      self.assertTrue(found.disclosure.shows_single_clients)
      self.assertIsNone(found.protection)

  def test_flags_of_privacy_are_those_of_the_task(self):
    _, prepare = _prepared('--method=feddpcont', '--label_epsilon=2', '--label_prior=inverse')
    self.assertEqual(tuple(prepare().task.label_privacy[:2]), ('2', 'inverse'))
    dataset, prepare = _prepared('--training_labels=private', '--label_epsilon=8')
    prepared = prepare()
    plain = _prepared()[1]().federation
    flipped = private_labels.flip(plain, '8', dataset.num_classes)
    for one, other in zip(prepared.federation.clients, flipped.clients, strict=True):
      np.testing.assert_array_equal(one.y, other.y)
    (update,) = [f for f in prepared.algorithm.fields if f.name == 'update']
    self.assertEqual(update.protection.epsilon, '8')

  def test_bfloat16_is_of_layers_and_not_of_variables(self):
    before = tf.keras.mixed_precision.global_policy().name
    model = _prepared('--mixed_precision')[1]().task.model
    network = keras_model.build_zeros(model)
    self.assertEqual({v.dtype for v in network.variables}, {tf.float32})
    self.assertIn('bfloat16', {layer.compute_dtype for layer in network.layers})
    self.assertEqual(tf.keras.mixed_precision.global_policy().name, before)

  @parameterized.parameters(('batch', True), ('group', False))
  def test_normalisation_is_that_of_the_flag(self, norm, moves):
    model = _prepared('--model=cnn', f'--norm={norm}')[1]().task.model
    self.assertEqual(bool(model.weights_type.non_trainable), moves)

  def test_who_shows_single_clients_without_saying_so_is_refused(self):
    method = f'--method={__name__}:QUIET'
    method_flags = method, '--param=keep=1', '--param=selector=agreement'
    _, prepare = _prepared(*method_flags)
    with self.assertRaisesRegex(
        types.UsageError, f'^{method} shows .*update.* of single clients: allow it with --allow_per'
    ):
      prepare()
    _, prepare = _prepared(*method_flags, '--allow_per_client_disclosure')
    self.assertNotEmpty(prepare().algorithm.fields)

  @parameterized.parameters('--temperature=5', '--label_smoothing=0.1', '--training_labels=private')
  def test_a_loss_that_does_not_take_what_flags_ask_for_is_refused(self, given):
    method = f'--method={__name__}:'
    self.assertNotEmpty(_prepared(method + 'TAKES', given)[1]().algorithm.fields)
    with self.assertRaisesRegex(types.UsageError, f'^{method}IGNORES: its loss does not take'):
      _prepared(method + 'IGNORES', given)[1]()

  def test_nor_does_one_that_others_look_at_or_a_part_of_which_is_taken(self):
    method, given = f'--method={__name__}:', ('--label_smoothing=0.1', '--logit_adjustment=1')
    with self.assertRaisesRegex(types.UsageError, 'ADJUSTS: its loss does not take'):
      _prepared(method + 'ADJUSTS', '--temperature=5', '--logit_adjustment=1')[1]()
    for name in ('ADJUSTS', 'PART'):
      with self.assertRaisesRegex(types.UsageError, f'{name}: its loss does not take'):
        _prepared(method + name, *given[: 2 if name == 'ADJUSTS' else 1])[1]()
    self.assertNotEmpty(_prepared(method + 'PART', '--temperature=5')[1]().algorithm.fields)

  def test_a_base_that_is_not_used_is_refused(self):
    method = f'--method={__name__}:'
    self.assertNotEmpty(_prepared(method + 'ON_ITS_BASE', '--base=fedadam')[1]().algorithm.fields)
    self.assertNotEmpty(_prepared(method + 'ON_ITS_OWN')[1]().algorithm.fields)
    with self.assertRaisesRegex(types.UsageError, '^--base=fedadam: .*ON_ITS_OWN takes a base an'):
      _prepared(method + 'ON_ITS_OWN', '--base=fedadam')[1]()

  def test_a_loss_of_its_own_runs_where_nothing_is_asked_of_it(self):
    self.assertNotEmpty(_prepared(f'--method={__name__}:IGNORES')[1]().algorithm.fields)

  def test_round_without_a_client_is_refused_before_anything_is_written(self):
    arrivals = self.create_tempfile(content='client,joins\n0,3\n1,3\n2,3\n3,4\n').full_path
    _, prepare = _prepared(f'--arrivals={arrivals}', '--rounds=3')
    with self.assertRaisesRegex(types.UsageError, '^--arrivals: no client is there in round 1$'):
      prepare()


if __name__ == '__main__':
  absltest.main()
