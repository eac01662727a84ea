"""Sixty-four episodes and forty evenings from which the stories are made.

The episodes stand in a ring. A story goes round it in steps of one to five, so the next episode depends on
the last one only, and a model that decodes greedily moves on through the story and cannot fall into a loop.
Every episode starts with the name of the hero, so that it can follow "On the third day, ". No sentence occurs
in two episodes.
"""

EPISODES = """
{name} packed {food} for the journey and closed the door with care. {friend} was already waiting at {a_place}.
They looked back once, and then the road took them over the first hill.

{name} met {a_helper} who had lost {a_object}. All three of them searched the tall grass until {friend} saw
something shine. The owner thanked them and gave them {food} for the road.

{name} came to {a_place} and heard a strange song. It was only {a_helper} who was singing to pass the time.
They learned the song together, and {friend} sang the high part.

{name} walked for hours through {weather}. At last {he} found shelter near {a_place}, where {a_helper} was
making soup. They shared {food} and dried their feet by the fire.

{name} found {n} white stones in a row, and each one pointed to the north. {friend} thought that someone had
left them as a sign. They followed the stones as far as {a_place}, and there the row came to an end.

{name} wanted to cross a river, but the water was high. {a_helper_up} came along with a little boat and asked
for {a_object} as the price. {friend} offered {food} in its place, and the bargain was made.

{name} slipped on the wet ground and hurt {his} foot. {friend} wrapped it in soft leaves and told {him} jokes.
They did not get far, but they laughed more than on any other part of the way.

{name} saw smoke behind {a_place} and ran to look. The cart of {a_helper} had caught fire, and there was no
time to lose. They carried {n} buckets of water from the stream and put out the flames.

{name} traded a story for {food} at {a_place}. People came from all sides to listen, and nobody wanted to go
home. {friend} passed a hat around and counted {n} coins in it.

{name} found {a_object} under a bush. It was old and dusty, but it still worked. {friend} said that they
should keep it, for one never knows what a road will bring.

{name} was stopped by {a_helper} who guarded {a_place}. "Only those who can answer my riddle may pass," said
the guard. {friend} knew the answer, and the way was free.

{name} woke up to {weather} and did not want to get up. Then {friend} brought {food}, and the world looked
better. Before long they were on their feet and passed {a_place}.

{name} helped {a_helper} to mend a broken wheel. The work was hard, and it took {n} tries until the wheel
would turn. As a reward they were allowed to ride on the cart for many miles.

{name} took the wrong turn at {a_place}. The path grew narrow, and soon there was no path at all. They walked
back in silence until {friend} began to hum, and then both of them smiled.

{name} heard someone crying near {a_place}. It was {a_helper} who had nothing left to eat. {name} gave away
half of the {food}, and the tears stopped at once.

{name} climbed to the top of a rock to look around. Far away {he} saw {a_place} and a thin silver line behind
it. {friend} drew a map in the sand so that they would not forget.

{name} came to a market with {n} stalls. One stall sold nothing but hats, and another one sold {food}.
{friend} bought {a_object} from {a_helper} and was proud of it.

{name} wrote a letter home and told of all that had happened. {a_helper_up} promised to deliver it. {friend}
added a drawing of {a_place} at the bottom of the page.

{name} had to wait because {weather} had closed the road. {friend} knew a game with {n} pebbles, and they
played it until the sky was clear. Neither of them could say who had won.

{name} discovered a door in a rock near {a_place}. Behind the door was a room full of books. {a_helper_up}
lived there and let them read for as long as they liked.

{name} lost {a_object} in the deep grass. {he_up} looked for it everywhere, but it was gone. {friend} said
that a light bag makes a quick walker, and they went on.

{name} was invited to a wedding near {a_place}. There was music, there was plenty of {food}, and everyone
danced until they were tired. The bride gave each guest {a_object}.

{name} saw {n} wild geese flying south. One of them was too weak to follow the others. {friend} fed it with
crumbs and kept it warm until it could fly again.

{name} fell into a quarrel with {friend} about the right way. For a mile they did not speak at all. Then both
of them said sorry at the same moment, and they shared {food} beside {a_place}.

{name} worked in the garden of {a_helper} to earn some food. {he_up} planted {n} rows of beans and watered
every one. In return {he} got {food} and a place to rest.

{name} found a bottle with a message inside. "Go to {a_place} and look for {a_object}," the message said. They
went there and found it, just where the writer had promised.

{name} followed a small stream up the hill. It led to {a_place}, where the water came out of the ground. The
water was so cold and so clear that {friend} drank {n} cups of it.

{name} was surprised by {weather} in the open fields. {a_helper_up} called them into a barn and shut the big
doors. They lay down in the hay and talked about {food}.

{name} had to carry {a_object} past {a_place} without dropping it. It was a test set by {a_helper} for all
travellers. {friend} walked behind with open hands, but no help was needed.

{name} asked {a_helper} for the way. "Go past {a_place}, and then follow your nose," was the answer. {friend}
sniffed the air and said that it smelled of {food}.

{name} built a raft out of {n} logs and a rope. The raft turned in circles at first, and {friend} got very
wet. By and by they learned to steer it, and the river carried them along.

{name} met {n} children who were playing near {a_place}. They needed one more player for their game. {friend}
joined in and scored the last goal, and the children cheered.

{name} found {a_helper} asleep beside the road. {a_object_up} had fallen from the sleeper's pocket. {friend}
put it back very gently, and they tiptoed away.

{name} tasted {food} for the first time near {a_place}. It was so good that {he} asked how to make it.
{a_helper_up} wrote the recipe on a leaf, and {friend} kept it safe.

{name} lay down in the grass and looked up at the sky. {friend} counted {n} clouds and gave each of them a
name. Somewhere near {a_place} an animal called, and another one answered.

{name} helped {a_helper} to bring in the harvest before {weather} could spoil it. They filled {n} sacks and
carried them to {a_place}. Everyone was tired, and everyone was glad.

{name} came upon a bridge that had lost {n} of its planks. {friend} fetched branches, and together they closed
the gaps. {a_helper_up} was the first to cross after them, and waved for a long time.

{name} lost sight of {friend} in {weather}. {he_up} called and called until a voice answered from {a_place}.
After that they tied a string between them and laughed about it.

{name} opened an old box that stood near {a_place}. Inside there was {a_object} and a note that said, "For
whoever needs it most." {friend} thought about it and took the note but left the box.

{name} was given {a_object} by {a_helper}. "It will help you when you least expect it," said the giver with a
wink. {friend} tried to guess how, and named {n} different ways.

{name} sat down to rest and counted what was left in the bag. {he_up} still had {food} and {a_object}, and
that was all. "It is enough," said {friend}, and it was.

{name} taught {a_helper} how to swim in the shallow water below {a_place}. There was a lot of splashing and a
lot of shouting. In the end the pupil swam {n} strokes alone.

{name} had a bad dream and woke with a start. {friend} was awake too and gave {him} some water. They talked
quietly about home until the fear was gone.

{name} found the footprints of a giant near {a_place}. They were as long as {n} steps of {friend}. The giant
turned out to be friendly and offered them {food}.

{name} won a race against {a_helper} to {a_place} and back. The prize was {a_object} with a bow around it.
{friend} was the loudest of all who clapped.

{name} listened to {a_helper}, who had once made the same journey. It had taken {n} weeks in those times, and
there had been wolves. {friend} moved a little closer to the fire.

{name} came past {a_place} and saw the sky upside down in still water. It was so beautiful that nobody said a
word. Then {friend} threw a pebble, and the picture broke into {n} rings.

{name} was so hungry that {he} could think only of {food}. {a_helper_up} must have heard the rumbling, because
a window opened and a plate came out. They ate beside {a_place} and left the plate clean.

{name} repaired a roof near {a_place} before {weather} could come in. {friend} handed up the nails, {n} at a
time. {a_helper_up} paid them with a warm meal and a joke.

{name} learned to play {n} notes on a flute made of reed. {a_helper_up} listened and began to dance. {friend}
said that the birds sang better, but not by much.

{name} met a trader who wanted to buy {a_object}. {he_up} did not want to sell it at any price. {friend} sold
the trader {food} instead, and all were content.

{name} got stuck in the mud close to {a_place}. The more {he} pulled, the deeper {he} sank. {friend} ran to
fetch {a_helper}, and with a long rope they pulled {him} out.

{name} looked after the {n} goats of {a_helper} for a while. One goat ate {a_object}, and another one climbed
on a roof. {friend} caught them all in the end and was out of breath.

{name} found a garden behind {a_place} where everything was blue. Blue roses grew there, and blue apples hung
from the trees. {friend} tasted one and said that it was like {food}.

{name} was caught by {weather} on the way down from {a_place}. They hid in a hollow tree and waited. To pass
the time {friend} told a tale about {a_helper} who was afraid of mice.

{name} saved a beetle that had fallen on its back. It was such a small thing to do that {he} soon forgot it.
But the beetle remembered, and led them around {a_place}, where the path had fallen away.

{name} heard {n} bells ring at the same time. They belonged to a village where {a_helper} was being made
mayor. Everybody got {food}, and {friend} got two helpings.

{name} had to choose between two roads at {a_place}. One was wide and easy, and the other was steep. {friend}
tossed {a_object} in the air to decide, and they took the steep one.

{name} was asked to judge which of {n} cakes was the best. {he_up} tasted each of them twice, to be fair. The
winner was {a_helper}, and {friend} ate what was left.

{name} gave {a_object} to {a_helper} who needed it more. It was not easy to part with it. But {friend} said
that their bags were lighter now, and so were their hearts.

{name} walked beside {a_helper} who was going the same way. They talked about {food}, about the weather and
about old friends. At {a_place} they parted, and {friend} waved until nothing more could be seen.

{name} passed {a_place} by the light of {n} lanterns. Each of them was held by a villager who wished them
luck. {friend} whispered that it was like walking through the stars.

{name} noticed that the air smelled different. "We are close now," said {friend}, and began to walk faster.
They hurried past {a_place} and did not stop, not even for {food}.

{name} met {a_helper} who had come from the very place they wanted to reach. "You have only a little way to
go," said the stranger. {friend} jumped for joy, and {n} crows flew up from {a_place}.
"""

EVENINGS = """
they made a small fire and watched the sparks fly up.
{friend} told a story about a king who could not count.
they slept under a warm blanket and heard the wind go by.
{name} wrote the best moment of the day on a piece of bark.
{friend} mended a hole in the bag and sang a quiet tune.
they shared the last apple and listened to the crickets.
the moon came up, and the two of them said good night to it.
{name} asked how far it still was, but nobody knew.
{friend} fell asleep first, in the middle of a word.
they found a dry place under a rock and slept well.
an owl called three times, and {friend} called back.
{name} thought about home for a while, and then about the road.
they drank hot tea and made a plan for the next part of the way.
{friend} collected dry wood while {name} looked for water.
the stars were so bright that they needed no lamp.
{name} polished a pair of dusty shoes until they shone.
they played a guessing game, and both of them won once.
{friend} drew a picture of everyone they had met that day.
a kind family gave them a bed and asked for nothing.
{name} could not sleep and counted sheep, up to a hundred.
they heard music from far away and danced a few steps.
{friend} taught {name} a rhyme about the rain.
the fire burned low, and they talked in whispers.
{name} made a pillow out of moss and was asleep at once.
they washed their faces in a brook and felt new again.
{friend} promised to wake up early and kept the promise.
a small cat came by and slept between them.
{name} carved a tiny boat and let it float away.
they cooked a soup from almost nothing, and it was good.
{friend} asked a riddle about the sea, and {name} guessed it.
the rain drummed on a roof of leaves, but they stayed dry.
{name} thanked {friend} for being there, and meant it.
they tied their bags to a branch so that no mouse could get in.
{friend} heard a strange noise, but it was only a frog.
a shooting star fell, and each of them made a wish.
{name} shook the sand out of the blanket and laughed.
they sat back to back and looked in two directions.
{friend} snored a little, and {name} did not mind.
the sky turned red, then violet, and then dark.
{name} folded the map and knew that the wish was nearer now.
"""
